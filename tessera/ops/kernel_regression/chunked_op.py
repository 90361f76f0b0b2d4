"""The blocked implementation as an operator that PyTorch knows, with its gradient, for compiled programs.

`torch.compile` takes it as one step of its graph: it would unroll the loop over blocks, whose number depends on the
lengths and on the documents. Its backward pass computes the row statistics again, as their number depends on these too.
"""

import json

import torch
from torch import Tensor

from tessera.base.first_derivative import only_first_derivative
from tessera.kernels.base import kernel_from_config
from tessera.ops.kernel_regression.block_passes import answers, gradients
from tessera.ops.kernel_regression.call import Call
from tessera.ops.kernel_regression.window import Window

_CALL = (
    "Tensor query, Tensor key, Tensor value, Tensor slope, Tensor? intercept, str kernel, SymInt offset, "
    "SymInt? delay, SymInt? span, Tensor? delays, Tensor? query_documents, Tensor? pair_documents"
)


def run(call: Call) -> Tensor:
    """See `chunked.run`; the slope, and the intercept unless it is None, are (B, H, T)."""
    return regress(*arguments(call))


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
