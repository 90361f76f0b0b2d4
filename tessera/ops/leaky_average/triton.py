"""The leaky average on GPUs: one pass over memory with the state in registers (`triton_scan`)."""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tessera.ops.leaky_average import chunked
from tessera.ops.triton_device import refuse_device

WIDEST = 1024


def refuse(x: Tensor) -> str | None:
    """Why this call cannot run here, or None."""
    if x.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"the Triton kernels compute in float32, float16 and bfloat16, not {x.dtype}"
    if x.dim() == 4 and x.shape[3] > WIDEST:
        return f"heads may be at most {WIDEST} wide; got {x.shape[3]}"
    if x.dim() == 4 and x.shape[0] * x.shape[1] > 65535:
        return f"batch times heads may be at most 65535; got {x.shape[0] * x.shape[1]}"
    return refuse_device(x)


@torch.compiler.disable
def run(x: Tensor, decay: Tensor, initial_state: Tensor | None, starts: Tensor | None) -> Tensor:
    """`y_t = x_t + decay y_{t-1}`, restarted where `starts` (B, T) holds."""
    if x.shape[2] == 1:  # decoding: one multiplication needs no kernel of its own
        return chunked.run(x, decay, initial_state, starts)
    with torch.cuda.device_of(x):
        return _LeakyAverage.apply(x, decay, initial_state, starts)


class _LeakyAverage(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, decay, initial_state, starts):
        from tessera.ops.triton_recurrence import forward

        keep = decay.float()[None, :, None].expand(x.shape[:3])
        if starts is not None:
            keep = keep.masked_fill(starts[:, None], 0.0)
        y, _ = forward(x, None, keep, initial_state)
        ctx.save_for_backward(decay, initial_state, starts, keep, y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        from tessera.ops.triton_recurrence import backward

        decay, initial_state, starts, keep, y = ctx.saved_tensors
        dx, pulls, first = backward(grad, y, y, None, keep, initial_state, None)
        if starts is not None:
            pulls = pulls.masked_fill(starts[:, None], 0.0)
        d_initial = None
        if initial_state is not None:
            d_initial = (first * keep[:, :, :1]).to(initial_state.dtype)
        return dx, pulls.sum(dim=(0, 2)).to(decay.dtype), d_initial, None
