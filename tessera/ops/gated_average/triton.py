"""The gated average on GPUs: the log-weights by a scan in float32, then one pass over x with the state in registers."""

import torch
from torch import Tensor

from tessera.base.first_derivative import only_first_derivative
from tessera.ops.gated_average import chunked
from tessera.ops.gated_average.call import GatedAverageCall, GatedAverageState
from tessera.ops.linear_recurrence import RecurrenceCall
from tessera.ops.linear_recurrence import triton as recurrence


def unsupported_reason(call: GatedAverageCall) -> str | None:
    """Why this call cannot run here, or None."""
    return recurrence.unsupported_reason(RecurrenceCall(call.x, call.log_decay))


def run(call: GatedAverageCall) -> tuple[Tensor, GatedAverageState]:
    """`y_t = a_t x_t + (1 - a_t) y_{t-1}` with `a_t = exp(g_t - s_t)`.

    Log-weights are float32 here (they lie between the gates and their largest plus log T): a gate of 100 is known to
    1e-5, and so are its weights.
    """
    if call.x.shape[2] == 1:  # decoding: a few numbers need no kernel of their own
        return chunked.run(call)
    new, keep, log_weight = gate_shares(call.log_gate, call.log_decay, call.state.log_weight)
    y, average = recurrence.run(RecurrenceCall(call.x, keep, new, call.state.average))
    return y, GatedAverageState(average, log_weight.double())


@torch.library.custom_op("tessera::gate_shares", mutates_args=())
def gate_shares(log_gate: Tensor, log_decay: Tensor, log_weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`a_t = exp(g_t - s_t)`, `1 - a_t` (B, H, T) and s_T (B, H) with `s_t = log(exp(g_t) + exp(d_t + s_{t-1}))`.

    From g, d (B, H, T) and s_0 (B, H), all float32. The gradient of `1 - a` must have been added to that of `a`.
    """
    from tessera.ops.gated_average import triton_weights

    new, keep, last = _unwritten_shares(log_gate)
    with torch.cuda.device_of(log_gate):
        triton_weights.launch_shares(log_gate, log_decay, log_weight, new, keep, last)
    return new, keep, last


@gate_shares.register_fake
def _(log_gate, log_decay, log_weight):
    return _unwritten_shares(log_gate)


def _unwritten_shares(log_gate: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    new = torch.empty(log_gate.shape, dtype=torch.float32, device=log_gate.device)
    return new, torch.empty_like(new), torch.empty(log_gate.shape[:2], dtype=torch.float32, device=log_gate.device)


def _save(ctx, inputs, output) -> None:
    ctx.dtypes = tuple(x.dtype for x in inputs)
    ctx.save_for_backward(*output[:2])


@only_first_derivative("gated_average")
def _gradients(ctx, grad_new, _, grad_weight):
    new, keep = ctx.saved_tensors
    gradients = chunked.share_gradients(new, keep, grad_new, grad_weight, _total)
    return tuple(x.to(dtype) for x, dtype in zip(gradients, ctx.dtypes, strict=True))


def _total(grad: Tensor, keep: Tensor) -> Tensor:
    x = grad[..., None]
    return recurrence.recur_backward(x, x, x, None, keep, None, None)[0][..., 0]


gate_shares.register_autograd(_gradients, setup_context=_save)
