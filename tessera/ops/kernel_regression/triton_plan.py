"""What the operator of kernel regression and the launch of its kernels agree on: the plan, and the results' memory."""

from typing import NamedTuple

import torch
from torch import Tensor

from tessera.ops.interleaved import interleaved


class Plan(NamedTuple):
    """What the kernels must compute, apart from the differentiable tensors, in the types of an operator's schema.

    family: see `triton_forward`. offset: position of the first query. delay: None: without a window, or with one delay
    per sequence, `delays` (B,). Documents: see `kernel_regression`. tiles: queries and pairs per tile, warps per
    program, depth of the software pipeline; None: `tiles_of` chooses.
    """

    family: str
    order: float
    margin: float
    offset: int
    delay: int | None
    span: int | None
    delays: Tensor | None
    query_documents: Tensor | None
    pair_documents: Tensor | None
    forward_tiles: list[int] | None = None
    backward_tiles: list[int] | None = None


def unwritten_results(query: Tensor, value: Tensor, family: str, save: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Memory for what `regress` returns."""
    shape, width = query.shape[:3], value.shape[-1]
    statistics = query.new_empty(3, *shape, dtype=torch.float32)
    best = query.new_empty(shape if family == "anchored" else (0,), dtype=torch.int32)
    smooth = interleaved(query, width) if family == "adaptive" and save else query.new_empty(0)
    return interleaved(query, width), statistics, best, smooth


def unwritten_gradients(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Memory for what `regress_backward` returns."""
    d_slope = query.new_empty(query.shape[:3], dtype=torch.float32)
    d_query, d_key = interleaved(query, query.shape[-1]), interleaved(key, key.shape[-1])
    return d_query, d_key, interleaved(value, value.shape[-1]), d_slope, torch.empty_like(d_slope)
