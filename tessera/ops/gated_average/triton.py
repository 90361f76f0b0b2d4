"""The gated average on GPUs: the log-weights by a scan in float32, then one pass over x with the state in registers."""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tessera.ops.gated_average import chunked
from tessera.ops.gated_average.state import GatedAverageState
from tessera.ops.leaky_average import triton as leaky_average_triton

CHUNK = 512


def refuse(x: Tensor) -> str | None:
    """Why this call cannot run here, or None."""
    return leaky_average_triton.refuse(x)


@torch.compiler.disable
def run(
    x: Tensor, log_gate: Tensor, log_decay: Tensor, state: GatedAverageState, starts: Tensor | None
) -> tuple[Tensor, GatedAverageState]:
    """`y_t = a_t x_t + (1 - a_t) y_{t-1}` with `a_t = exp(g_t - s_t)`, restarted where `starts` (B, T) holds.

    Log-weights are float32 here (they lie between the gates and their largest plus log T): a gate of 100 is known to
    1e-5, and so are its weights.
    """
    if x.shape[2] == 1:  # decoding: a few numbers need no kernel of their own
        return chunked.run(x, log_gate, log_decay, state, starts)
    if starts is not None:
        log_decay = log_decay.masked_fill(starts[:, None], -torch.inf)
    with torch.cuda.device_of(x):
        y, last, log_weight = _GatedAverage.apply(x, log_gate, log_decay, state.average, state.log_weight)
    return y, GatedAverageState(last, log_weight)


class _GatedAverage(torch.autograd.Function):
    """Forward: shares, then the recurrence. Backward: the recurrence from the end, once for y and once for s."""

    @staticmethod
    def forward(ctx, x, log_gate, log_decay, average, log_weight):
        from tessera.ops.triton_recurrence import forward

        new, keep, last_weight = _shares(log_gate, log_decay, log_weight)
        y, last = forward(x, new, keep, average)
        ctx.save_for_backward(x, new, keep, average, y)
        ctx.dtypes = log_gate.dtype, log_decay.dtype
        return y, last, last_weight.double()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad, grad_last, grad_weight):
        from tessera.ops.triton_recurrence import backward

        x, new, keep, average, y = ctx.saved_tensors
        grad_x, pulls, first = backward(grad, x, y, new, keep, average, grad_last)
        # y_t depends on g_t - d_t - s_{t-1} through new_t alone, whose derivative is new (1 - new).
        pull = pulls * new * keep
        toward = torch.cat([-pull[:, :, 1:], grad_weight.float().unsqueeze(2)], dim=2)[..., None]
        weight = backward(toward, toward, toward, None, keep, None, None)[0][..., 0]
        grad_gate, grad_decay = pull + new * weight, keep * weight - pull
        grad_average = (first * keep[:, :, :1]).to(average.dtype)
        gate_dtype, decay_dtype = ctx.dtypes
        return grad_x, grad_gate.to(gate_dtype), grad_decay.to(decay_dtype), grad_average, grad_decay[:, :, 0].double()


def _shares(log_gate: Tensor, log_decay: Tensor, log_weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """new_t and keep_t (B, H, T), and the last log-weight (B, H), all float32."""
    import triton

    from tessera.ops.gated_average import triton_weights
    from tessera.ops.triton_product import INTERPRETED

    batch, heads, steps = log_gate.shape
    new = torch.empty(batch, heads, steps, dtype=torch.float32, device=log_gate.device)
    keep, last = torch.empty_like(new), torch.empty(batch, heads, dtype=torch.float32, device=log_gate.device)
    chunk = 8 if INTERPRETED else min(CHUNK, triton.next_power_of_2(steps))
    triton_weights.shares[(batch * heads,)](
        log_gate, log_decay, log_weight.float().contiguous(), new, keep, last, steps, heads,
        *log_gate.stride(), *log_decay.stride(), CHUNK=chunk
    )  # fmt: skip
    return new, keep, last
