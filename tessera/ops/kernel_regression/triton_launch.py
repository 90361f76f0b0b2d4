"""Launching the Triton kernels of kernel regression: tiles, addresses, the ranges of documents."""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from tessera.ops.kernel_regression import triton_backward, triton_forward
from tessera.ops.kernel_regression.triton import Plan, unwritten_gradients, unwritten_results
from tessera.ops.kernel_regression.triton_tiles import Scope
from tessera.ops.triton_product import INTERPRETED, dot_precision, matrix, rowwise


class Tiles(NamedTuple):
    """Queries and pairs per tile, warps per program, depth of the software pipeline."""

    rows: int
    pairs: int
    warps: int
    stages: int


def tiles_of(plan: Plan, query: Tensor, value: Tensor, kernel: str) -> Tiles:
    """The tiles of the plan, or those that fit the registers of a Hopper GPU (tests/ops/test_triton_compiles.py).

    `kernel`: "forward", or one of the backward pass, "queries" or "pairs" (by what its programs hold).
    """
    tiles = plan.forward_tiles if kernel == "forward" else plan.backward_tiles
    if tiles is not None:
        return Tiles(*tiles)
    if INTERPRETED:
        return Tiles(16, 16, 4, 1)
    wide = max(query.shape[-1], value.shape[-1]) > 64
    if query.dtype == torch.float32:
        if kernel == "pairs":
            return Tiles(32, 16 if wide else 32, 4, 2)
        return Tiles(16 if wide else 64, 32, 4, 2)
    if kernel == "forward":
        return Tiles(128, 32 if plan.family == "fixed" else 64, 8, 3)
    return Tiles(64, 64, 8 if wide else 4, 2)


def document_ranges(own: Tensor, other: Tensor, own_block: int, other_block: int) -> Tensor:
    """For each block of `own` (B, n), the first and one past the last entry of the blocks of `other` (B, m) whose
    range of documents meets its own: int32 (B, blocks, 2). Negative documents meet nothing."""
    own_low, own_high = _block_ranges(own, own_block)
    other_low, other_high = _block_ranges(other, other_block)
    meets = (own_low[:, :, None] <= other_high[:, None, :]) & (other_low[:, None, :] <= own_high[:, :, None])
    index = torch.arange(meets.shape[-1], device=own.device)
    start = torch.where(meets, index, meets.shape[-1]).amin(-1)
    end = torch.where(meets, index + 1, 0).amax(-1)
    return (torch.stack([start, end], dim=-1) * other_block).to(torch.int32).contiguous()


def _block_ranges(documents: Tensor, block: int) -> tuple[Tensor, Tensor]:
    documents = torch.nn.functional.pad(documents, (0, -documents.shape[1] % block), value=-1)
    documents = documents.unflatten(1, (-1, block))
    low = documents.masked_fill(documents < 0, torch.iinfo(documents.dtype).max).amin(-1)
    return low, documents.amax(-1)


def scope_of(
    plan: Plan, query: Tensor, key: Tensor, tiles: Tiles, by_pairs: bool
) -> tuple[Scope, dict[str, int | str]]:
    """The kernels' `Scope` and the compile-time constants that say which of its parts count."""
    standin = query
    delays = standin if plan.delays is None else plan.delays.to(device=query.device, dtype=torch.int32).contiguous()
    asks, held, ranges = standin, standin, standin
    if plan.pair_documents is not None:
        assert plan.query_documents is not None, "they are given together"
        asks, held = plan.query_documents.int().contiguous(), plan.pair_documents.int().contiguous()
        sides = (held, asks, tiles.pairs, tiles.rows) if by_pairs else (asks, held, tiles.rows, tiles.pairs)
        ranges = document_ranges(*sides)
    scope = Scope(
        query.shape[1], query.shape[2], key.shape[2], plan.offset, plan.delay or 0, plan.span or 0, delays, asks, held,
        ranges,
    )  # fmt: skip
    constants = {
        "WINDOW": 2 if plan.delays is not None else 0 if plan.delay is None else 1,
        "SPANNED": plan.span is not None,
        "DOCUMENTS": plan.pair_documents is not None,
        "PRECISION": dot_precision(),
        "ROWS": tiles.rows,
        "PAIRS": tiles.pairs,
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
    }
    return scope, constants


def widths(query: Tensor, value: Tensor) -> dict[str, int]:
    """Head widths and the powers of two that hold them (at least 16, what a tensor core takes)."""
    key_width, value_width = query.shape[-1], value.shape[-1]
    return {
        "KEY_WIDTH": key_width,
        "KEY_BLOCK": max(16, triton.next_power_of_2(key_width)),
        "VALUE_WIDTH": value_width,
        "VALUE_BLOCK": max(16, triton.next_power_of_2(value_width)),
    }


def forward(
    query: Tensor, key: Tensor, value: Tensor, slope: Tensor, intercept: Tensor, save: bool, plan: Plan
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What `triton.regress` returns."""
    query, key, value = rowwise(query), rowwise(key), rowwise(value)
    y, statistics, best, smooth = results = unwritten_results(query, value, plan.family, save)
    tiles = tiles_of(plan, query, value, "forward")
    scope, constants = scope_of(plan, query, key, tiles, by_pairs=False)
    grid = (triton.cdiv(query.shape[2], tiles.rows), query.shape[0] * query.shape[1])
    constants |= widths(query, value)
    inputs = (matrix(query), matrix(key), matrix(value), matrix(y))
    if plan.family == "gaussian":
        triton_forward.softmax_forward[grid](*inputs, matrix(slope), statistics, scope, **constants)
    elif plan.family == "adaptive":
        tolerance = (1e-6 if plan.order < 2 else 1e-5) if query.dtype == torch.float32 else 2e-3
        triton_forward.threshold_forward[grid](
            *inputs, matrix(smooth if save else y), matrix(slope), statistics, scope, tolerance,
            ORDER=plan.order, SAVE=save, **constants
        )  # fmt: skip
    else:
        triton_forward.rectified_forward[grid](
            *inputs, matrix(slope), matrix(intercept), best, statistics, scope, plan.margin,
            ANCHORED=plan.family == "anchored", **constants
        )  # fmt: skip
    return results


def backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, slope: Tensor, statistics: Tensor, best: Tensor,
    product: Tensor, plan: Plan
) -> tuple[Tensor, ...]:  # fmt: skip
    """What `triton.regress_backward` returns."""
    grad, query, key, value = rowwise(grad), rowwise(query), rowwise(key), rowwise(value)
    d_query, d_key, d_value, d_slope, d_intercept = gradients = unwritten_gradients(query, key, value)
    deltas, totals = torch.empty_like(d_slope), torch.empty_like(d_slope)
    tiles = tiles_of(plan, query, value, "queries")
    constants = widths(query, value) | {"FAMILY": plan.family, "ORDER": plan.order}
    inputs = (matrix(query), matrix(key), matrix(value), matrix(grad))
    heads = query.shape[0] * query.shape[1]
    for_rows, tile_constants = scope_of(plan, query, key, tiles, by_pairs=False)
    triton_backward.queries_backward[(triton.cdiv(query.shape[2], tiles.rows), heads)](
        *inputs, matrix(product), matrix(d_query), d_slope, d_intercept, matrix(slope),
        best, statistics, deltas, totals, for_rows, **constants, **tile_constants
    )  # fmt: skip
    tiles = tiles_of(plan, query, value, "pairs")
    for_pairs, tile_constants = scope_of(plan, query, key, tiles, by_pairs=True)
    triton_backward.pairs_backward[(triton.cdiv(key.shape[2], tiles.pairs), heads)](
        *inputs, matrix(d_key), matrix(d_value), matrix(slope),
        best, statistics, deltas, totals, for_pairs, **constants, **tile_constants
    )  # fmt: skip
    return gradients
