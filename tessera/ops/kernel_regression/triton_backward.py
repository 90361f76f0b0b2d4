"""Triton kernels of the backward pass: the queries' side and the pairs' side, for every kernel.

With g_ij = dy_i . v_j and s_ij the derivative of a weight by its own score, all kernels have the gradient
`dz_ij = s_ij (g_ij - delta_i)`, and relumax takes the row's sum of it away from the best match. `delta` is dy . y where
the weights are normalised by their sum, and dy . smooth for adaptive bandwidths (README.md).
"""

import triton
import triton.language as tl

from tessera.ops.kernel_regression.triton_forward import scores_of
from tessera.ops.kernel_regression.triton_tiles import (
    load_column,
    load_statistics,
    load_tile,
    pairs_met,
    place,
    queries_met,
    raised,
    start_of,
    store_tile,
    visible,
)
from tessera.ops.triton_product import product


@triton.jit
def pulled_back(z, g, center, tau, norm, delta, FAMILY: tl.constexpr, ORDER: tl.constexpr):
    """Weights and the gradient by the scores, from scores and g; numbers of rows broadcast against them."""
    if FAMILY == "gaussian":
        weights = tl.exp2(z - center) * norm
        slopes = weights
    elif FAMILY == "adaptive":
        responses = tl.maximum((z - center) - tau, 0.0)
        slopes = raised(responses, ORDER - 1)
        weights = slopes * responses * norm
    else:
        responses = tl.maximum((z - center) - tau, 0.0)
        slopes = tl.where(responses > 0, tl.maximum(norm, 0.0), 0.0)
        weights = tl.where((z > float("-inf")) & (norm < 0), -norm, responses * tl.maximum(norm, 0.0))
    return weights, slopes * (g - delta)


@triton.jit
def queries_backward(
    query, key, value, grad, result, d_query, d_slopes, d_intercepts, slopes, best, statistics, deltas, totals, scope,
    FAMILY: tl.constexpr, ORDER: tl.constexpr,
    KEY_WIDTH: tl.constexpr, KEY_BLOCK: tl.constexpr, VALUE_WIDTH: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, PAIRS: tl.constexpr,
    WINDOW: tl.constexpr, SPANNED: tl.constexpr, DOCUMENTS: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Gradients of queries, slopes and intercepts; leaves delta, and the rows' sums for relumax, to the pairs' side."""
    block, row_index, batch, head, rows, positions, delay = place(scope, ROWS, WINDOW)
    inside = rows < scope.num_queries
    start, end, clear_start, clear_end = pairs_met(scope, batch, block, delay, ROWS, PAIRS, WINDOW, SPANNED, DOCUMENTS)
    q = load_tile(start_of(query, batch, head), query.row, rows, scope.num_queries, KEY_WIDTH, KEY_BLOCK)
    dy = load_tile(start_of(grad, batch, head), grad.row, rows, scope.num_queries, VALUE_WIDTH, VALUE_BLOCK)
    y = load_tile(start_of(result, batch, head), result.row, rows, scope.num_queries, VALUE_WIDTH, VALUE_BLOCK)
    delta = tl.sum(dy.to(tl.float32) * y.to(tl.float32), 1)
    center, tau, norm = load_statistics(statistics, scope, row_index, rows)
    slope = load_column(slopes, batch, head, rows, scope.num_queries)
    key_start, value_start = start_of(key, batch, head), start_of(value, batch, head)
    moved = tl.zeros((ROWS, KEY_BLOCK), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for first in range(start, end, PAIRS):
        z = scores_of(
            q, slope * score_scale(FAMILY, ORDER), key_start, key.row, first, scope, batch, positions, delay,
            clear_start, clear_end,
            KEY_WIDTH, KEY_BLOCK, PAIRS, WINDOW, SPANNED, DOCUMENTS, PRECISION
        )  # fmt: skip
        pairs = first + tl.arange(0, PAIRS)
        v = load_tile(value_start, value.row, pairs, scope.num_pairs, VALUE_WIDTH, VALUE_BLOCK)
        g = product(dy, tl.trans(v), tl.zeros((ROWS, PAIRS), tl.float32), PRECISION)
        _, dz = pulled_back(z, g, center[:, None], tau[:, None], norm[:, None], delta[:, None], FAMILY, ORDER)
        if FAMILY == "anchored" or FAMILY == "fixed":
            total += tl.sum(dz, 1)
        k = load_tile(key_start, key.row, pairs, scope.num_pairs, KEY_WIDTH, KEY_BLOCK)
        moved = product(dz.to(k.dtype), k, moved, PRECISION)
    if FAMILY == "anchored":
        where = tl.load(best + row_index * scope.num_queries + rows, mask=inside, other=0)
        k = load_tile(key_start, key.row, where, scope.num_pairs, KEY_WIDTH, KEY_BLOCK)
        moved -= total[:, None] * k.to(tl.float32)
        tl.store(totals + row_index * scope.num_queries + rows, total, mask=inside)
    if FAMILY == "fixed":
        tl.store(d_intercepts + row_index * scope.num_queries + rows, total, mask=inside)
    tl.store(deltas + row_index * scope.num_queries + rows, delta, mask=inside)
    d_slope = tl.sum(moved * q.to(tl.float32), 1)
    tl.store(d_slopes + row_index * scope.num_queries + rows, d_slope, mask=inside)
    store_tile(d_query, batch, head, rows, scope.num_queries, moved * slope[:, None], KEY_WIDTH, KEY_BLOCK)


@triton.jit
def score_scale(FAMILY: tl.constexpr, ORDER: tl.constexpr):
    """What the scores are multiplied by before the statistics apply to them."""
    if FAMILY == "gaussian":
        scale = 1.4426950408889634
    elif FAMILY == "adaptive":
        scale = 1.0 / ORDER
    else:
        scale = 1.0
    return scale


@triton.jit
def pairs_backward(
    query, key, value, grad, d_key, d_value, slopes, best, statistics, deltas, totals, scope,
    FAMILY: tl.constexpr, ORDER: tl.constexpr,
    KEY_WIDTH: tl.constexpr, KEY_BLOCK: tl.constexpr, VALUE_WIDTH: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, PAIRS: tl.constexpr,
    WINDOW: tl.constexpr, SPANNED: tl.constexpr, DOCUMENTS: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Gradients of keys and values: one block of pairs, over the queries that may see them. Tiles are (PAIRS, ROWS)."""
    _, row_index, batch, head, _, _, delay = place(scope, ROWS, WINDOW)
    block = tl.program_id(0)
    pairs = block * PAIRS + tl.arange(0, PAIRS)
    start, end, clear_start, clear_end = queries_met(
        scope, batch, block, delay, ROWS, PAIRS, WINDOW, SPANNED, DOCUMENTS
    )
    k = load_tile(start_of(key, batch, head), key.row, pairs, scope.num_pairs, KEY_WIDTH, KEY_BLOCK)
    v = load_tile(start_of(value, batch, head), value.row, pairs, scope.num_pairs, VALUE_WIDTH, VALUE_BLOCK)
    query_start, grad_start = start_of(query, batch, head), start_of(grad, batch, head)
    moved_key = tl.zeros((PAIRS, KEY_BLOCK), tl.float32)
    moved_value = tl.zeros((PAIRS, VALUE_BLOCK), tl.float32)
    for first in range(start, end, ROWS):
        rows = first + tl.arange(0, ROWS)
        inside = rows < scope.num_queries
        q = load_tile(query_start, query.row, rows, scope.num_queries, KEY_WIDTH, KEY_BLOCK)
        dy = load_tile(grad_start, grad.row, rows, scope.num_queries, VALUE_WIDTH, VALUE_BLOCK)
        slope = load_column(slopes, batch, head, rows, scope.num_queries)
        center, tau, norm = load_statistics(statistics, scope, row_index, rows)
        delta = tl.load(deltas + row_index * scope.num_queries + rows, mask=inside, other=0.0)
        z = (
            product(k, tl.trans(q), tl.zeros((PAIRS, ROWS), tl.float32), PRECISION)
            * (slope * score_scale(FAMILY, ORDER))[None, :]
        )
        partial = (first < clear_start) | (first + ROWS > clear_end)
        if DOCUMENTS:
            partial = first >= 0
        if partial:
            positions = rows + scope.offset
            seen = visible(scope, batch, positions[None, :], pairs[:, None], delay, WINDOW, SPANNED, DOCUMENTS)
            z = tl.where(seen, z, float("-inf"))
        g = product(v, tl.trans(dy), tl.zeros((PAIRS, ROWS), tl.float32), PRECISION)
        weights, dz = pulled_back(z, g, center[None, :], tau[None, :], norm[None, :], delta[None, :], FAMILY, ORDER)
        if FAMILY == "anchored":
            where = tl.load(best + row_index * scope.num_queries + rows, mask=inside, other=-1)
            total = tl.load(totals + row_index * scope.num_queries + rows, mask=inside, other=0.0)
            dz = tl.where(pairs[:, None] == where[None, :], dz - total[None, :], dz)
        moved_value = product(weights.to(dy.dtype), dy, moved_value, PRECISION)
        moved_key = product((dz * slope[None, :]).to(q.dtype), q, moved_key, PRECISION)
    store_tile(d_key, batch, head, pairs, scope.num_pairs, moved_key, KEY_WIDTH, KEY_BLOCK)
    store_tile(d_value, batch, head, pairs, scope.num_pairs, moved_value, VALUE_WIDTH, VALUE_BLOCK)
