"""Triton kernels of the forward pass that need no threshold; `triton_threshold.py` has the other (see README.md).

Each keeps three numbers per query for the backward pass, `center`, `tau` and `norm`: with the scores z,
    gaussian                w = 2^(z log2(e) - center) norm       center: the largest of its scores, here and below
    rectified polynomials   w = [z / r - center - tau]_+^r norm   tau: the threshold relative to the center
    relumax                 w = [z - center - tau]_+ norm         tau: minus the margin
    normalized_relu         w = [z]_+ norm                        norm = -1/n where n pairs share the weight evenly
An empty row has norm 0, and so has one with a NaN, whose y is NaN.
Center and tau are kept apart because their sum loses tau's digits when scores are large.
"""

import triton
import triton.language as tl

from tessera.ops.kernel_regression.triton_tiles import (
    delay_of,
    inverse,
    load_column,
    load_tile,
    pairs_met,
    place,
    start_of,
    store_statistics,
    store_tile,
    visible,
)
from tessera.ops.triton_product import product


@triton.jit
def scores_of(
    q, slope, key_start, key_row, first, scope, batch, positions, delay, clear_start, clear_end,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, PAIRS: tl.constexpr,
    WINDOW: tl.constexpr, SPANNED: tl.constexpr, DOCUMENTS: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Scores (ROWS, PAIRS) of the tile of pairs that begins at `first`, without intercept; -inf where not visible."""
    pairs = first + tl.arange(0, PAIRS)
    k = load_tile(key_start, key_row, pairs, scope.num_pairs, WIDTH, BLOCK)
    z = product(q, tl.trans(k), tl.zeros((q.shape[0], PAIRS), tl.float32), PRECISION) * slope[:, None]
    partial = (first < clear_start) | (first + PAIRS > clear_end)
    if DOCUMENTS:
        partial = first >= 0
    if partial:
        seen = visible(scope, batch, positions[:, None], pairs[None, :], delay, WINDOW, SPANNED, DOCUMENTS)
        z = tl.where(seen, z, float("-inf"))
    return z


@triton.jit
def softmax_forward(
    query, key, value, out, slopes, statistics, scope,
    KEY_WIDTH: tl.constexpr, KEY_BLOCK: tl.constexpr, VALUE_WIDTH: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, PAIRS: tl.constexpr,
    WINDOW: tl.constexpr, SPANNED: tl.constexpr, DOCUMENTS: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Gaussian kernel: one sweep with a running maximum."""
    block, row_index, batch, head = place(scope)
    rows = block * ROWS + tl.arange(0, ROWS)
    positions = rows + scope.offset
    delay = delay_of(scope, batch, WINDOW)
    start, end, clear_start, clear_end = pairs_met(
        scope, block * ROWS + scope.offset, batch, block, delay, ROWS, PAIRS, WINDOW, SPANNED, DOCUMENTS
    )
    q = load_tile(start_of(query, batch, head), query.row, rows, scope.num_queries, KEY_WIDTH, KEY_BLOCK)
    slope = load_column(slopes, batch, head, rows, scope.num_queries) * 1.4426950408889634
    key_start, value_start = start_of(key, batch, head), start_of(value, batch, head)
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    y = tl.zeros((ROWS, VALUE_BLOCK), tl.float32)
    for first in range(start, end, PAIRS):
        z = scores_of(
            q, slope, key_start, key.row, first, scope, batch, positions, delay, clear_start, clear_end,
            KEY_WIDTH, KEY_BLOCK, PAIRS, WINDOW, SPANNED, DOCUMENTS, PRECISION
        )  # fmt: skip
        raised_to = tl.maximum(largest, tl.max(z, 1))
        anchor = tl.where(raised_to == float("-inf"), 0.0, raised_to)
        weights = tl.exp2(z - anchor[:, None])
        shrink = tl.exp2(largest - anchor)
        total = total * shrink + tl.sum(weights, 1)
        v = load_tile(value_start, value.row, first + tl.arange(0, PAIRS), scope.num_pairs, VALUE_WIDTH, VALUE_BLOCK)
        y = y * shrink[:, None]
        y = product(weights.to(v.dtype), v, y, PRECISION)
        largest = raised_to
    norm = inverse(total)
    store_tile(
        start_of(out, batch, head), out.row, rows, scope.num_queries, y * norm[:, None], VALUE_WIDTH, VALUE_BLOCK
    )
    store_statistics(statistics, scope, row_index, rows, tl.where(total > 0, largest, 0.0), tl.zeros_like(norm), norm)


@triton.jit
def rectified_forward(
    query, key, value, out, slopes, intercepts, best, statistics, scope, margin,
    ANCHORED: tl.constexpr,
    KEY_WIDTH: tl.constexpr, KEY_BLOCK: tl.constexpr, VALUE_WIDTH: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, PAIRS: tl.constexpr,
    WINDOW: tl.constexpr, SPANNED: tl.constexpr, DOCUMENTS: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Normalised rectified scores: ANCHORED at the best match (relumax: a sweep for it, kept in `best`), or as they are
    (normalized_relu: where all are 0, a second sweep shares the weight evenly)."""
    block, row_index, batch, head = place(scope)
    rows = block * ROWS + tl.arange(0, ROWS)
    positions = rows + scope.offset
    delay = delay_of(scope, batch, WINDOW)
    start, end, clear_start, clear_end = pairs_met(
        scope, block * ROWS + scope.offset, batch, block, delay, ROWS, PAIRS, WINDOW, SPANNED, DOCUMENTS
    )
    q = load_tile(start_of(query, batch, head), query.row, rows, scope.num_queries, KEY_WIDTH, KEY_BLOCK)
    slope = load_column(slopes, batch, head, rows, scope.num_queries)
    key_start, value_start = start_of(key, batch, head), start_of(value, batch, head)
    center = tl.zeros((ROWS,), tl.float32)
    tau = tl.zeros((ROWS,), tl.float32)
    if ANCHORED:
        center += float("-inf")
        where = tl.zeros((ROWS,), tl.int32)
        for first in range(start, end, PAIRS):
            z = scores_of(
                q, slope, key_start, key.row, first, scope, batch, positions, delay, clear_start, clear_end,
                KEY_WIDTH, KEY_BLOCK, PAIRS, WINDOW, SPANNED, DOCUMENTS, PRECISION
            )  # fmt: skip
            largest, column = tl.max(z, 1, return_indices=True)
            where = tl.where(largest > center, first + column, where)
            center = tl.maximum(center, largest)
        center = tl.where(center == float("-inf"), 0.0, center)
        tau -= margin
        tl.store(best + row_index * scope.num_queries + rows, where, mask=rows < scope.num_queries)
    else:
        tau -= load_column(intercepts, batch, head, rows, scope.num_queries)

    total = tl.zeros((ROWS,), tl.float32)
    y = tl.zeros((ROWS, VALUE_BLOCK), tl.float32)
    for first in range(start, end, PAIRS):
        z = scores_of(
            q, slope, key_start, key.row, first, scope, batch, positions, delay, clear_start, clear_end,
            KEY_WIDTH, KEY_BLOCK, PAIRS, WINDOW, SPANNED, DOCUMENTS, PRECISION
        )  # fmt: skip
        weights = tl.maximum((z - center[:, None]) - tau[:, None], 0.0, propagate_nan=tl.PropagateNan.ALL)
        total += tl.sum(weights, 1)
        v = load_tile(value_start, value.row, first + tl.arange(0, PAIRS), scope.num_pairs, VALUE_WIDTH, VALUE_BLOCK)
        y = product(weights.to(v.dtype), v, y, PRECISION)
    norm = inverse(total)
    y = y * norm[:, None]
    if not ANCHORED:  # noqa: SIM102 (one is known at compile time, the other is not)
        if tl.min(total, 0) <= 0:
            even = tl.zeros((ROWS, VALUE_BLOCK), tl.float32)
            count = tl.zeros((ROWS,), tl.float32)
            for first in range(start, end, PAIRS):
                pairs = first + tl.arange(0, PAIRS)
                seen = visible(scope, batch, positions[:, None], pairs[None, :], delay, WINDOW, SPANNED, DOCUMENTS)
                count += tl.sum(tl.where(seen, 1.0, 0.0), 1)
                v = load_tile(value_start, value.row, pairs, scope.num_pairs, VALUE_WIDTH, VALUE_BLOCK)
                even = product(tl.where(seen, 1.0, 0.0).to(v.dtype), v, even, PRECISION)
            share = 1.0 / tl.maximum(count, 1.0)
            y = tl.where((total <= 0)[:, None], even * share[:, None], y)
            norm = tl.where((total <= 0) & (count > 0), -share, norm)
    store_tile(start_of(out, batch, head), out.row, rows, scope.num_queries, y, VALUE_WIDTH, VALUE_BLOCK)
    store_statistics(statistics, scope, row_index, rows, center, tau, norm)
