"""Kernel regression in blocks: exact, with memory linear in the number of queries and pairs, for every row kernel.

The derivation, the counts and the measurements are in README.md of this folder.
"""

from dataclasses import replace

import torch
from torch import Tensor

from tessera.base.first_derivative import only_first_derivative
from tessera.kernels.base import KERNELS
from tessera.kernels.rows import RowKernel
from tessera.ops.kernel_regression import chunked_op
from tessera.ops.kernel_regression.block_passes import answers, gradients, working_dtype
from tessera.ops.kernel_regression.call import Call


def unsupported_reason(call: Call) -> str | None:
    """Why this call cannot run here, or None."""
    if not isinstance(call.kernel, RowKernel):
        return f"the kernel {call.kernel.name!r} has no `forward` and `backward` (it is not a RowKernel)"
    if call.dropout:
        return "it has no dropout of weights"
    if torch.compiler.is_compiling() and not _is_registered(call.kernel):
        return f"a compiled program finds kernels by their name, and {call.kernel.name!r} is not registered"
    return None


def _is_registered(kernel: RowKernel) -> bool:
    return kernel.name in KERNELS and KERNELS[kernel.name] is type(kernel)


def run(call: Call) -> Tensor:
    """`y_T = sum_i w_i v_i` block by block; time O(visible pairs), memory O(T + N) per head beside one block.

    Scores, thresholds and sums are computed in float32 (float64 inputs: float64), products of weights with values
    and of gradients with keys and queries in the inputs' type. Not twice differentiable.
    """
    dtype = working_dtype(call.query)
    slope, intercept = (
        # Widened before it is expanded: the gradient of a slope shared by many queries is summed in `dtype`.
        None
        if scale is None
        else torch.as_tensor(scale, device=call.query.device).to(dtype).expand(call.query.shape[:3])
        for scale in (call.slope, call.intercept)
    )
    assert slope is not None
    call = replace(call, slope=slope, intercept=intercept)
    if torch.compiler.is_compiling():
        return chunked_op.run(call)
    assert isinstance(call.kernel, RowKernel), "unsupported_reason refuses others"
    parameter = call.kernel.row_parameter
    parameter = None if parameter is None else parameter.to(slope).expand(*slope.shape, 1)
    return _Blockwise.apply(call.query, call.key, call.value, slope, intercept, parameter, call)


class _Blockwise(torch.autograd.Function):
    """Saved for backward: the inputs and the kernel's row statistics, nothing of size T x N."""

    @staticmethod
    def forward(ctx, query, key, value, slope, intercept, parameter, call: Call) -> Tensor:
        """`y_t = sum_i w_ti v_i`, a block of queries at a time: (B, H, T, V) in the type of `value`."""
        call = _with_tensors(call, query, key, value, slope, intercept, parameter)
        output, statistics = answers(call)
        ctx.call = call
        ctx.lengths = [len(kept) for kept in statistics]
        kept_parts = (part for kept in statistics for part in kept)
        ctx.save_for_backward(query, key, value, slope, intercept, parameter, *kept_parts)
        return output

    @staticmethod
    @only_first_derivative("kernel_regression")
    def backward(ctx, grad: Tensor):
        """Gradients from that of y, (B, H, T, V): each block's weights are computed again from the row statistics."""
        query, key, value, slope, intercept, parameter, *parts = ctx.saved_tensors
        call = _with_tensors(ctx.call, query, key, value, slope, intercept, parameter)
        remaining = iter(parts)
        statistics = [tuple(next(remaining) for _ in range(length)) for length in ctx.lengths]
        return (*gradients(call, statistics, grad), None)


def _with_tensors(call: Call, query, key, value, slope, intercept, parameter) -> Call:
    assert isinstance(call.kernel, RowKernel), "unsupported_reason refuses others"
    kernel = call.kernel if parameter is None else call.kernel.with_row_parameter(parameter)
    return replace(call, query=query, key=key, value=value, slope=slope, intercept=intercept, kernel=kernel)
