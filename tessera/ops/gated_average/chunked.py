"""The gated average on any device: its log-weights by doubling, then a linear recurrence (see README.md)."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from tessera.base.devices import is_exporting
from tessera.base.first_derivative import fresh_result, only_first_derivative
from tessera.ops.gated_average.call import GatedAverageCall, GatedAverageState
from tessera.ops.linear_recurrence import RecurrenceCall
from tessera.ops.linear_recurrence import chunked as recurrence

# The log of a decay that leaves nothing, as at the border of documents: sums of more than that many nats lose digits.
LARGEST_DECAY = -1e4


def run(call: GatedAverageCall) -> tuple[Tensor, GatedAverageState]:
    """`y_t = a_t x_t + (1 - a_t) y_{t-1}` with `a_t = exp(g_t - s_t)`."""
    x, state = call.x, call.state
    log_gate, log_decay = call.log_gate.double(), call.log_decay.double()
    if x.shape[2] == 1:
        return _step(x, log_gate, log_decay, state)
    new, keep, log_weight = _GateShares.apply(log_gate, log_decay, state.log_weight)
    y, average = recurrence.run(RecurrenceCall(x, keep, new, state.average))
    return y, GatedAverageState(average, log_weight)


def _step(x: Tensor, log_gate: Tensor, log_decay: Tensor, state: GatedAverageState) -> tuple[Tensor, GatedAverageState]:
    kept = log_decay[:, :, 0] + state.log_weight
    share = torch.sigmoid(log_gate[:, :, 0] - kept)[..., None].to(state.average.dtype)
    average = torch.lerp(state.average, x[:, :, 0].to(state.average.dtype), share)
    return average.unsqueeze(2).to(x.dtype), GatedAverageState(average, torch.logaddexp(log_gate[:, :, 0], kept))


class _GateShares(torch.autograd.Function):
    """`a_t`, `1 - a_t` (B, H, T) and s_T (B, H) of float64 gates, decays and s_0.

    The gradient of `1 - a` must have been added to that of `a`, as `linear_recurrence` does.
    """

    @staticmethod
    def forward(ctx, log_gate, log_decay, initial):
        """a = sigmoid(g_t - d_t - s_{t-1}), 1 - a, and the last s_t = log(e^{g_t} + e^{d_t + s_{t-1}})."""
        log_weight = _log_weights(log_gate, log_decay, initial)
        margin = log_gate - (log_decay + torch.cat([initial.unsqueeze(2), log_weight[:, :, :-1]], dim=2))
        margin = margin.contiguous()  # as logsigmoid's result is on a CPU, where torch.compile expects other strides
        new, keep = logsigmoid(margin).exp_(), logsigmoid(-margin).exp_()
        ctx.save_for_backward(new, keep)
        return fresh_result(new), fresh_result(keep), log_weight[:, :, -1].clone()

    @staticmethod
    @only_first_derivative("gated_average")
    def backward(ctx, grad_new, _, grad_weight):
        """See `share_gradients`."""
        new, keep = ctx.saved_tensors
        return share_gradients(new, keep, grad_new, grad_weight, _total)


def share_gradients(
    new: Tensor, keep: Tensor, grad_new: Tensor, grad_weight: Tensor, total: Callable[[Tensor, Tensor], Tensor]
) -> tuple[Tensor, ...]:
    """Gradients of g, d and s_0, from those of a (B, H, T) and of s_T (B, H).

    y_t depends on g_t - d_t - s_{t-1} through a_t alone, whose derivative is a (1 - a). `total(grad, keep)` is
    `total_t = grad_t + keep_{t+1} total_{t+1}`.
    """
    pull = grad_new * new * keep
    toward = torch.cat([-pull[:, :, 1:], grad_weight.unsqueeze(2)], dim=2)
    weight = total(toward, keep)
    d_decay = keep * weight - pull
    return pull + new * weight, d_decay, d_decay[:, :, 0]


def _total(grad: Tensor, keep: Tensor) -> Tensor:
    return recurrence.scan(grad[..., None], recurrence.logarithm(keep), reverse=True)[..., 0]


def _log_weights(log_gate: Tensor, log_decay: Tensor, initial: Tensor) -> Tensor:
    """`s_t = log(exp(g_t) + exp(d_t + s_{t-1}))` for all t, by doubling: only sums of logs, nothing cancels."""
    if is_exporting():  # to a program for any length, in which nothing may depend on it
        total = log_decay.clamp(min=LARGEST_DECAY).cumsum(2)
        return total + torch.logaddexp((log_gate - total).logcumsumexp(2), initial.unsqueeze(2))
    weight, decay = log_gate.clone(), log_decay
    weight[:, :, 0] = torch.logaddexp(log_gate[:, :, 0], log_decay[:, :, 0] + initial)
    reach = 1
    while reach < weight.shape[2]:
        earlier = decay[:, :, reach:] + weight[:, :, :-reach]
        weight = torch.cat([weight[:, :, :reach], torch.logaddexp(weight[:, :, reach:], earlier)], dim=2)
        decay = torch.cat([decay[:, :, :reach], decay[:, :, reach:] + decay[:, :, :-reach]], dim=2)
        reach *= 2
    return weight
