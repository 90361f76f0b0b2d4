"""Triton kernels of the forward pass (see README.md).

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
    inverse,
    load_column,
    load_tile,
    pairs_met,
    place,
    raised,
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
    block, row_index, batch, head, rows, positions, delay = place(scope, ROWS, WINDOW)
    start, end, clear_start, clear_end = pairs_met(scope, batch, block, delay, ROWS, PAIRS, WINDOW, SPANNED, DOCUMENTS)
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
    store_tile(out, batch, head, rows, scope.num_queries, y * norm[:, None], VALUE_WIDTH, VALUE_BLOCK)
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
    block, row_index, batch, head, rows, positions, delay = place(scope, ROWS, WINDOW)
    start, end, clear_start, clear_end = pairs_met(scope, batch, block, delay, ROWS, PAIRS, WINDOW, SPANNED, DOCUMENTS)
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
    unit = tl.zeros((ROWS,), tl.float32)
    y = tl.zeros((ROWS, VALUE_BLOCK), tl.float32)
    for first in range(start, end, PAIRS):
        z = scores_of(
            q, slope, key_start, key.row, first, scope, batch, positions, delay, clear_start, clear_end,
            KEY_WIDTH, KEY_BLOCK, PAIRS, WINDOW, SPANNED, DOCUMENTS, PRECISION
        )  # fmt: skip
        weights = tl.maximum((z - center[:, None]) - tau[:, None], 0.0, propagate_nan=tl.PropagateNan.ALL)
        if not ANCHORED:  # large scores would overflow in a sum or in the values' type: in units of the largest so far
            before = unit
            unit = tl.maximum(unit, tl.max(weights, 1))
            divisor = tl.where(unit > 0, unit, 1.0)
            weights = weights / divisor[:, None]
            total = total * (before / divisor)
            y = y * (before / divisor)[:, None]
        total += tl.sum(weights, 1)
        v = load_tile(value_start, value.row, first + tl.arange(0, PAIRS), scope.num_pairs, VALUE_WIDTH, VALUE_BLOCK)
        y = product(weights.to(v.dtype), v, y, PRECISION)
    norm = inverse(total)
    y = y * norm[:, None]
    if not ANCHORED:
        norm = norm / tl.where(unit > 0, unit, 1.0)
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
    store_tile(out, batch, head, rows, scope.num_queries, y, VALUE_WIDTH, VALUE_BLOCK)
    store_statistics(statistics, scope, row_index, rows, center, tau, norm)


@triton.jit
def threshold_start(group_maxima, ORDER: tl.constexpr):
    """Row maxima, and relative to them a lower bound of tau: the root for the group maxima, a part of the row."""
    largest = tl.max(group_maxima, 1)
    largest = tl.where(largest == float("-inf"), 0.0, largest)
    shifted = group_maxima - largest[:, None]
    tau = tl.zeros_like(largest) - 1.0
    for _ in range(4):
        responses = tl.maximum(shifted - tau[:, None], 0.0)
        slope = raised(responses, ORDER - 1)
        tau += newton_step(tl.sum(slope * responses, 1), tl.sum(slope, 1), ORDER)
    return largest, tau


@triton.jit
def newton_step(total, slope, ORDER: tl.constexpr):
    """Newton's step for the r-norm of the responses to become 1; never to the left (rounding), 0 for empty rows."""
    if ORDER == 1:
        target = tl.zeros_like(total) + 1.0
    elif ORDER == 2:
        target = tl.sqrt(total)
    else:
        target = raised(total, 1 - 1 / ORDER)
    return tl.where(total > target, (total - target) / tl.maximum(slope, 1e-30), 0.0)


@triton.jit
def thresholds(
    q, slope, key_start, key_row, start, end, scope, batch, positions, delay, clear_start, clear_end, tolerance,
    ORDER: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, PAIRS: tl.constexpr,
    WINDOW: tl.constexpr, SPANNED: tl.constexpr, DOCUMENTS: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Each row's largest score and, relative to it, tau: a sweep for the maxima of groups of pairs, then Newton's."""
    group_maxima = tl.full((ROWS, PAIRS), float("-inf"), tl.float32)
    for first in range(start, end, PAIRS):
        z = scores_of(
            q, slope, key_start, key_row, first, scope, batch, positions, delay, clear_start, clear_end,
            WIDTH, BLOCK, PAIRS, WINDOW, SPANNED, DOCUMENTS, PRECISION
        )  # fmt: skip
        group_maxima = tl.maximum(group_maxima, z)
    largest, tau = threshold_start(group_maxima, ORDER)

    moved = tolerance + 1.0
    sweeps = 0
    while (moved > tolerance) & (sweeps < 30):
        total = tl.zeros((ROWS,), tl.float32)
        total_slope = tl.zeros((ROWS,), tl.float32)
        for first in range(start, end, PAIRS):
            z = scores_of(
                q, slope, key_start, key_row, first, scope, batch, positions, delay, clear_start, clear_end,
                WIDTH, BLOCK, PAIRS, WINDOW, SPANNED, DOCUMENTS, PRECISION
            )  # fmt: skip
            responses = tl.maximum((z - largest[:, None]) - tau[:, None], 0.0)
            power = raised(responses, ORDER - 1)
            total_slope += tl.sum(power, 1)
            total += tl.sum(power * responses, 1)
        step = newton_step(total, total_slope, ORDER)
        tau += step
        moved = tl.max(step, 0)
        sweeps += 1
    return largest, tau


@triton.jit
def threshold_forward(
    query, key, value, out, smooth, slopes, statistics, scope, tolerance,
    ORDER: tl.constexpr, SAVE: tl.constexpr,
    KEY_WIDTH: tl.constexpr, KEY_BLOCK: tl.constexpr, VALUE_WIDTH: tl.constexpr, VALUE_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, PAIRS: tl.constexpr,
    WINDOW: tl.constexpr, SPANNED: tl.constexpr, DOCUMENTS: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """Rectified polynomials of adaptive bandwidth (alpha-entmax): a sweep for the maxima of groups of pairs, two or
    three for Newton's steps on tau, one for the output. `smooth` = sum_i u_i^(r-1) v_i / sum_i u_i^(r-1): gradient."""
    block, row_index, batch, head, rows, positions, delay = place(scope, ROWS, WINDOW)
    start, end, clear_start, clear_end = pairs_met(scope, batch, block, delay, ROWS, PAIRS, WINDOW, SPANNED, DOCUMENTS)
    q = load_tile(start_of(query, batch, head), query.row, rows, scope.num_queries, KEY_WIDTH, KEY_BLOCK)
    slope = load_column(slopes, batch, head, rows, scope.num_queries) * (1.0 / ORDER)
    key_start, value_start = start_of(key, batch, head), start_of(value, batch, head)

    largest, tau = thresholds(
        q, slope, key_start, key.row, start, end, scope, batch, positions, delay, clear_start, clear_end, tolerance,
        ORDER, KEY_WIDTH, KEY_BLOCK, ROWS, PAIRS, WINDOW, SPANNED, DOCUMENTS, PRECISION
    )  # fmt: skip
    total = tl.zeros((ROWS,), tl.float32)
    total_slope = tl.zeros((ROWS,), tl.float32)
    y = tl.zeros((ROWS, VALUE_BLOCK), tl.float32)
    y_smooth = tl.zeros((ROWS, VALUE_BLOCK), tl.float32)
    for first in range(start, end, PAIRS):
        z = scores_of(
            q, slope, key_start, key.row, first, scope, batch, positions, delay, clear_start, clear_end,
            KEY_WIDTH, KEY_BLOCK, PAIRS, WINDOW, SPANNED, DOCUMENTS, PRECISION
        )  # fmt: skip
        responses = tl.maximum((z - largest[:, None]) - tau[:, None], 0.0, propagate_nan=tl.PropagateNan.ALL)
        power = raised(responses, ORDER - 1)
        weights = power * responses
        total += tl.sum(weights, 1)
        v = load_tile(value_start, value.row, first + tl.arange(0, PAIRS), scope.num_pairs, VALUE_WIDTH, VALUE_BLOCK)
        y = product(weights.to(v.dtype), v, y, PRECISION)
        if SAVE:
            total_slope += tl.sum(power, 1)
            y_smooth = product(power.to(v.dtype), v, y_smooth, PRECISION)
    norm = inverse(total)
    store_tile(out, batch, head, rows, scope.num_queries, y * norm[:, None], VALUE_WIDTH, VALUE_BLOCK)
    if SAVE:
        # NaN where the weights are; slopes of order 0 are not.
        y_smooth = y_smooth / tl.maximum(total_slope, 1e-30)[:, None] + 0.0 * total[:, None]
        store_tile(smooth, batch, head, rows, scope.num_queries, y_smooth, VALUE_WIDTH, VALUE_BLOCK)
        store_statistics(statistics, scope, row_index, rows, largest, tau, norm)
