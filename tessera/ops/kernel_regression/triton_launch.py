"""Launching the Triton kernels: tiles, addresses, the ranges of documents, and the autograd function around them."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from tessera.ops.kernel_regression import triton_backward, triton_forward, triton_threshold
from tessera.ops.kernel_regression.triton_tiles import Matrix, Scope
from tessera.ops.kernel_regression.window import Window
from tessera.ops.triton_product import INTERPRETED, dot_precision


@dataclass(frozen=True)
class Tiles:
    """Queries and pairs per tile, warps per program, depth of the software pipeline."""

    rows: int
    pairs: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Plan:
    """What the kernels must compute, apart from the differentiable tensors. Families: see `triton_forward`."""

    family: str
    order: float
    margin: float
    window: Window | None
    offset: int
    query_documents: Tensor | None
    pair_documents: Tensor | None
    forward_tiles: Tiles | None = None
    backward_tiles: Tiles | None = None

    def tiles(self, query: Tensor, value: Tensor, kernel: str) -> Tiles:
        """The tiles asked for, or those that fit the registers of a Hopper GPU (tests/ops/test_triton_compiles.py).

        `kernel`: "forward", or one of the backward pass, "queries" or "pairs" (by what its programs hold).
        """
        asked = self.forward_tiles if kernel == "forward" else self.backward_tiles
        if asked is not None:
            return asked
        if INTERPRETED:
            return Tiles(16, 16, 4, 1)
        wide = max(query.shape[-1], value.shape[-1]) > 64
        if query.dtype == torch.float32:
            if kernel == "pairs":
                return Tiles(32, 16 if wide else 32, 4, 2)
            return Tiles(16 if wide else 64, 32, 4, 2)
        if kernel == "forward":
            return Tiles(128, 32 if self.family == "fixed" else 64, 8, 3)
        return Tiles(64, 64, 8 if wide else 4, 2)


def matrix(x: Tensor) -> Matrix:
    """`x` (B, H, T, ...) as the kernels address it."""
    return Matrix(x, x.stride(0), x.stride(1), x.stride(2))


def rowwise(x: Tensor) -> Tensor:
    """`x`, copied only if its rows are not stored densely."""
    return x if x.stride(-1) == 1 else x.contiguous()


def interleaved(like: Tensor, width: int) -> Tensor:
    """An unwritten (B, H, T, width) tensor in memory order (B, T, H, width), so that heads merge without a copy."""
    batch, heads, rows = like.shape[:3]
    return torch.empty(batch, rows, heads, width, dtype=like.dtype, device=like.device).transpose(1, 2)


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


def scope_of(plan: Plan, query: Tensor, key: Tensor, tiles: Tiles, by_pairs: bool) -> tuple[Scope, dict[str, object]]:
    """The kernels' `Scope` and the compile-time constants that say which of its parts count."""
    window, standin = plan.window, query
    per_sequence = window is not None and isinstance(window.delay, Tensor)
    delays = window.delay.to(device=query.device, dtype=torch.int32).contiguous() if per_sequence else standin
    asks, held, ranges = standin, standin, standin
    if plan.pair_documents is not None:
        asks, held = plan.query_documents.int().contiguous(), plan.pair_documents.int().contiguous()
        sides = (held, asks, tiles.pairs, tiles.rows) if by_pairs else (asks, held, tiles.rows, tiles.pairs)
        ranges = document_ranges(*sides)
    delay = window.delay if window is not None and not per_sequence else 0
    span = window.span if window is not None and window.span is not None else 0
    scope = Scope(
        query.shape[1], query.shape[2], key.shape[2], plan.offset, delay, span, delays, asks, held, ranges
    )  # fmt: skip
    constants = {
        "WINDOW": 0 if window is None else 2 if per_sequence else 1,
        "SPANNED": span > 0,
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


class KernelRegression(torch.autograd.Function):
    """`y = sum_i w_i v_i`; keeps y, the statistics of each query and, for adaptive bandwidths, one more y."""

    @staticmethod
    def forward(ctx, query, key, value, slope, intercept, plan, save):
        """y (B, H, T, V) from queries, keys, values and the rows' slopes and intercepts (B, H, T)."""
        query, key, value = rowwise(query), rowwise(key), rowwise(value)
        shape = query.shape[:3]
        y = interleaved(query, value.shape[-1])
        statistics = torch.empty(3, *shape, dtype=torch.float32, device=query.device)
        best = torch.empty(shape if plan.family == "anchored" else (1,), dtype=torch.int32, device=query.device)
        smooth = interleaved(query, value.shape[-1]) if plan.family == "adaptive" and save else y
        tiles = plan.tiles(query, value, "forward")
        scope, constants = scope_of(plan, query, key, tiles, by_pairs=False)
        grid = (triton.cdiv(shape[2], tiles.rows), shape[0] * shape[1])
        constants |= widths(query, value)
        inputs = (matrix(query), matrix(key), matrix(value), matrix(y))
        if plan.family == "gaussian":
            triton_forward.softmax_forward[grid](*inputs, matrix(slope), statistics, scope, **constants)
        elif plan.family == "adaptive":
            tolerance = (1e-6 if plan.order < 2 else 1e-5) if query.dtype == torch.float32 else 2e-3
            triton_threshold.threshold_forward[grid](
                *inputs, matrix(smooth), matrix(slope), statistics, scope, tolerance,
                ORDER=plan.order, SAVE=save, **constants
            )  # fmt: skip
        else:
            triton_forward.rectified_forward[grid](
                *inputs, matrix(slope), matrix(intercept), best, statistics, scope, plan.margin,
                ANCHORED=plan.family == "anchored", **constants
            )  # fmt: skip
        ctx.plan = plan
        ctx.save_for_backward(query, key, value, slope, best, statistics, smooth)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        """Gradients of query, key, value and slope; of the intercept where the kernel depends on it."""
        query, key, value, slope, best, statistics, product = ctx.saved_tensors
        plan, shape, grad = ctx.plan, query.shape[:3], rowwise(grad)
        numbers = torch.empty(4, *shape, dtype=torch.float32, device=query.device)
        d_slope, d_intercept, deltas, totals = numbers
        d_query, d_key = interleaved(query, query.shape[-1]), interleaved(key, key.shape[-1])
        d_value = interleaved(value, value.shape[-1])
        tiles = plan.tiles(query, value, "queries")
        constants = widths(query, value) | {"FAMILY": plan.family, "ORDER": plan.order}
        inputs = (matrix(query), matrix(key), matrix(value), matrix(grad))
        for_rows, tile_constants = scope_of(plan, query, key, tiles, by_pairs=False)
        triton_backward.queries_backward[(triton.cdiv(shape[2], tiles.rows), shape[0] * shape[1])](
            *inputs, matrix(product), matrix(d_query), d_slope, d_intercept, matrix(slope),
            best, statistics, deltas, totals, for_rows, **constants, **tile_constants
        )  # fmt: skip
        tiles = plan.tiles(query, value, "pairs")
        for_pairs, tile_constants = scope_of(plan, query, key, tiles, by_pairs=True)
        triton_backward.pairs_backward[(triton.cdiv(key.shape[2], tiles.pairs), shape[0] * shape[1])](
            *inputs, matrix(d_key), matrix(d_value), matrix(slope),
            best, statistics, deltas, totals, for_pairs, **constants, **tile_constants
        )  # fmt: skip
        d_intercept = d_intercept if plan.family == "fixed" else None
        return d_query, d_key, d_value, d_slope, d_intercept, None, None
