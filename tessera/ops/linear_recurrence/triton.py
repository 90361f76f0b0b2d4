"""The linear recurrence on GPUs: one pass over memory with the state in registers, as an operator that PyTorch knows.

Being a registered operator, `torch.compile` takes it as one step of its graph, and tensors without data (meta, fake)
pass through it. Nothing here needs triton itself; its kernels are in `triton_kernels`.
"""

import torch
from torch import Tensor

from tessera.base.first_derivative import only_first_derivative
from tessera.ops.linear_recurrence import chunked
from tessera.ops.linear_recurrence.call import RecurrenceCall
from tessera.ops.triton_device import interleaved, unsupported_device

WIDEST = 1024


def unsupported_reason(call: RecurrenceCall) -> str | None:
    """Why this call cannot run here, or None."""
    x = call.x
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"the Triton kernels compute in float32, float16 and bfloat16, not {x.dtype}"
    if x.shape[3] > WIDEST:
        return f"heads may be at most {WIDEST} wide; got {x.shape[3]}"
    if x.shape[0] * x.shape[1] > 65535:
        return f"batch times heads may be at most 65535; got {x.shape[0] * x.shape[1]}"
    if x.numel() == 0:
        return "an empty tensor has nothing to compute"
    return unsupported_device(x)


def run(call: RecurrenceCall) -> tuple[Tensor, Tensor]:
    """`y_t = new_t x_t + keep_t y_{t-1}`, in float32 between loads and stores."""
    if call.x.shape[2] == 1:  # decoding: one multiplication needs no kernel of its own
        return chunked.run(call)
    new = None if call.new is None else call.new.float()
    y, last = recur(call.x, new, call.keep.float().expand(call.x.shape[:3]), call.initial)
    return y, last.to(call.state_dtype)


@torch.library.custom_op("tessera::linear_recurrence", mutates_args=())
def recur(x: Tensor, new: Tensor | None, keep: Tensor, initial: Tensor | None) -> tuple[Tensor, Tensor]:
    """See `linear_recurrence`; new and keep are float32 (B, H, T). Returns y like x, and y_T (B, H, K) in float32."""
    from tessera.ops.linear_recurrence import triton_kernels

    with torch.cuda.device_of(x):
        return triton_kernels.forward(x, new, keep, initial)


@recur.register_fake
def _(x, new, keep, initial):
    return interleaved(x, x.shape[3]), _last(x)


@torch.library.custom_op("tessera::linear_recurrence_backward", mutates_args=())
def recur_backward(
    grad: Tensor, x: Tensor, y: Tensor, new: Tensor | None, keep: Tensor, initial: Tensor | None, final: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(dx, pulls (B, H, T), the total of the first step (B, H, K)); `final` is the gradient of the last state.

    `total_t = grad_t + keep_{t+1} total_{t+1}`; pulls are `total_t . y_{t-1}`, or `total_t . (x_t - y_{t-1})` where
    `new` is given. Without `new`, x is not looked at: any tensor of its shape and dtype will do.
    """
    from tessera.ops.linear_recurrence import triton_kernels

    with torch.cuda.device_of(x):
        return triton_kernels.backward(grad, x, y, new, keep, initial, final)


@recur_backward.register_fake
def _(grad, x, y, new, keep, initial, final):
    return interleaved(x, x.shape[3]), x.new_empty(x.shape[:3], dtype=torch.float32), _last(x)


def _last(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1], x.shape[3], dtype=torch.float32)


def _save(ctx, inputs, output) -> None:
    x, new, keep, initial = inputs
    ctx.save_for_backward(None if new is None else x, new, keep, initial, output[0])
    ctx.set_materialize_grads(False)


@only_first_derivative("linear_recurrence")
def _gradients(ctx, grad, grad_last):
    x, new, keep, initial, y = ctx.saved_tensors
    grad = torch.zeros_like(y) if grad is None else grad
    dx, pulls, first = recur_backward(grad, y if x is None else x, y, new, keep, initial, grad_last)
    d_initial = None if initial is None else (first * keep[:, :, :1]).to(initial.dtype)
    return dx, None if new is None else pulls, pulls if new is None else None, d_initial


recur.register_autograd(_gradients, setup_context=_save)
