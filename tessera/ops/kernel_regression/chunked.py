"""Kernel regression in blocks: exact, with memory linear in the number of queries and pairs, for every row kernel.

The derivation, the counts and the measurements are in README.md of this folder.

In compiled programs it is an operator that PyTorch knows, with its gradient, so that `torch.compile` takes it as one
step of its graph: it would unroll the loop over blocks, whose number depends on the lengths and on the documents. Its
backward pass computes the row statistics again, as their number depends on these too.
"""

import json
from dataclasses import replace

import torch
from torch import Tensor

from tessera.base.first_derivative import only_first_derivative
from tessera.kernels.base import KERNELS, kernel_from_config
from tessera.kernels.rows import RowKernel
from tessera.ops.kernel_regression.block_passes import answers, gradients, working_dtype
from tessera.ops.kernel_regression.call import Call
from tessera.ops.kernel_regression.window import Window

_CALL = (
    "Tensor query, Tensor key, Tensor value, Tensor slope, Tensor? intercept, str kernel, SymInt offset, "
    "SymInt? delay, SymInt? span, Tensor? delays, Tensor? query_documents, Tensor? pair_documents"
)


def unsupported_reason(call: Call) -> str | None:
    """Why this call cannot run here, or None."""
    if not isinstance(call.kernel, RowKernel):
        return f"the kernel {call.kernel.name!r} has no `forward` and `backward` (it is not a RowKernel)"
    if call.dropout:
        return "it has no dropout of weights"
    name = call.kernel.name
    if torch.compiler.is_compiling() and not (name in KERNELS and KERNELS[name] is type(call.kernel)):
        return f"a compiled program finds kernels by their name, and {name!r} is not registered"
    return None


def run(call: Call) -> Tensor:
    """`y_T = sum_i w_i v_i` block by block; time O(visible pairs), memory O(T + N) per head beside one block.

    Scores, thresholds and sums are computed in float32 (float64 inputs: float64), products of weights with values
    and of gradients with keys and queries in the inputs' type. Not twice differentiable.
    """
    slope = _expanded(call.slope, call)
    intercept = None if call.intercept is None else _expanded(call.intercept, call)
    call = replace(call, slope=slope, intercept=intercept)
    if torch.compiler.is_compiling():
        return regress(*arguments(call))
    assert isinstance(call.kernel, RowKernel), "unsupported_reason refuses others"
    parameter = call.kernel.row_parameter
    parameter = None if parameter is None else parameter.to(slope).expand(*slope.shape, 1)
    return _Blockwise.apply(call.query, call.key, call.value, slope, intercept, parameter, call)


def _expanded(scale: Tensor, call: Call) -> Tensor:
    """Widened before it is expanded: the gradient of a slope shared by many queries is summed in the wide type."""
    return scale.to(call.query.device, working_dtype(call.query)).expand(call.query.shape[:3])


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


def arguments(call: Call) -> tuple:
    """`call` as the operator takes it."""
    delay = None if call.window is None else call.window.delay
    return (
        call.query,
        call.key,
        call.value,
        call.slope,
        call.intercept,
        _text_of(call.kernel.to_config()),
        call.query_offset,
        None if isinstance(delay, Tensor) else delay,
        None if call.window is None else call.window.span,
        delay if isinstance(delay, Tensor) else None,
        call.query_documents,
        call.pair_documents,
    )


@torch.compiler.assume_constant_result
def _text_of(config: dict[str, object]) -> str:
    return json.dumps(config)  # of plain values: torch 2.11 cannot hand on a dataclass


def _call(
    query, key, value, slope, intercept, kernel, offset, delay, span, delays, query_documents, pair_documents
) -> Call:
    window = None if delay is None and delays is None else Window(delay if delays is None else delays, span)
    spec = kernel_from_config(json.loads(kernel))
    return Call(query, key, value, spec, slope, intercept, window, offset, query_documents, pair_documents)


@torch.library.custom_op("tessera::kernel_regression_in_blocks", mutates_args=(), schema=f"({_CALL}) -> Tensor")
def regress(*arguments):
    """y (B, H, T, V)."""
    return answers(_call(*arguments))[0]


@regress.register_fake
def _(query, key, value, *rest):
    return value.new_empty(*query.shape[:3], value.shape[-1])


@torch.library.custom_op(
    "tessera::kernel_regression_in_blocks_backward", mutates_args=(), schema=f"(Tensor grad, {_CALL}) -> Tensor[]"
)
def regress_backward(grad, *arguments):
    """Gradients of query, key, value, slope and, if there is one, intercept."""
    call = _call(*arguments)
    # A compiled program expects the strides that the operator announces, whatever those of its inputs.
    return [part.contiguous() for part in gradients(call, answers(call)[1], grad) if part is not None]


@regress_backward.register_fake
def _(grad, query, key, value, slope, intercept, *rest):
    tensors = (query, key, value, slope) if intercept is None else (query, key, value, slope, intercept)
    return [tensor.new_empty(tensor.shape) for tensor in tensors]


def _save(ctx, inputs, output) -> None:
    *tensors, kernel, offset, delay, span, delays, query_documents, pair_documents = inputs
    ctx.plan = (kernel, offset, delay, span)
    ctx.save_for_backward(*tensors, delays, query_documents, pair_documents)


@only_first_derivative("kernel_regression")
def _gradients(ctx, grad):
    query, key, value, slope, intercept, *masks = ctx.saved_tensors
    parts = regress_backward(grad, query, key, value, slope, intercept, *ctx.plan, *masks)
    with_intercept = parts if intercept is not None else [*parts, None]
    return *with_intercept, *[None] * 7


regress.register_autograd(_gradients, setup_context=_save)
