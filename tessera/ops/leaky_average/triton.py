"""The leaky average on GPUs: one pass over memory with the state in registers (`triton_scan`)."""

import torch
from torch import Tensor

from tessera.ops.leaky_average import chunked
from tessera.ops.linear_recurrence import linear_recurrence
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
    if x.numel() == 0:
        return "an empty tensor has nothing to compute"
    return refuse_device(x)


def run(x: Tensor, decay: Tensor, initial_state: Tensor | None, starts: Tensor | None) -> Tensor:
    """`y_t = x_t + decay y_{t-1}`, restarted where `starts` (B, T) holds."""
    if x.shape[2] == 1:  # decoding: one multiplication needs no kernel of its own
        return chunked.run(x, decay, initial_state, starts)
    keep = decay.float()[None, :, None].expand(x.shape[:3])
    if starts is not None:
        keep = keep.masked_fill(starts[:, None], 0.0)
    return linear_recurrence(x, None, keep, initial_state)[0]
