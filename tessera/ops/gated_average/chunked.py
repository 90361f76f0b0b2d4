"""The gated average as products with one small matrix per chunk: parallel over time, O(T) memory (see README.md)."""

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from tessera.ops.gated_average.state import GatedAverageState

CHUNK = 32
# exp(-800) is zero in float64, and factors only get smaller: clamping there changes nothing.
LOG_ZERO = -800.0


def refuse(x: Tensor) -> str | None:
    """The chunked scan takes every call."""
    return None


def run(
    x: Tensor, log_gate: Tensor, log_decay: Tensor, state: GatedAverageState, starts: Tensor | None
) -> tuple[Tensor, GatedAverageState]:
    """`y_t = a_t x_t + (1 - a_t) y_{t-1}` with `a_t = exp(g_t - s_t)`, restarted where `starts` (B, T) holds."""
    log_gate, log_decay = log_gate.double(), log_decay.double()
    if starts is not None:
        log_decay = log_decay.masked_fill(starts[:, None], -torch.inf)
    if x.shape[2] == 1:
        return _step(x, log_gate, log_decay, state)
    y, last, log_weight = _GatedAverage.apply(x, log_gate, log_decay, state.average, state.log_weight)
    return y, GatedAverageState(last, log_weight)


def _step(x: Tensor, log_gate: Tensor, log_decay: Tensor, state: GatedAverageState) -> tuple[Tensor, GatedAverageState]:
    kept = log_decay[:, :, 0] + state.log_weight
    share = torch.sigmoid(log_gate[:, :, 0] - kept)[..., None].to(state.average.dtype)
    average = torch.lerp(state.average, x[:, :, 0].to(state.average.dtype), share)
    return average.unsqueeze(2).to(x.dtype), GatedAverageState(average, torch.logaddexp(log_gate[:, :, 0], kept))


class _GatedAverage(torch.autograd.Function):
    """Forward: log-weights s, then the scan. Backward: the scan from the end, twice (once for y, once for s)."""

    @staticmethod
    def forward(ctx, x, log_gate, log_decay, initial, initial_weight):
        log_weight = _log_weights(log_gate, log_decay, initial_weight)
        log_new, log_kept = _shares(log_gate, log_decay, log_weight, initial_weight)
        precise = initial.dtype
        y = _scan(x.to(precise) * log_new.exp().to(precise)[..., None], log_kept, initial)
        last = y[:, :, -1].clone()
        y = y.to(x.dtype)
        ctx.save_for_backward(x, log_gate, log_decay, initial, initial_weight, log_weight, y)
        return y, last, log_weight[:, :, -1].clone()

    @staticmethod
    def backward(ctx, grad, grad_last, grad_weight):
        x, log_gate, log_decay, initial, initial_weight, log_weight, y = ctx.saved_tensors
        log_new, log_kept = _shares(log_gate, log_decay, log_weight, initial_weight)
        precise = initial.dtype
        grad = grad.to(precise, copy=True)
        grad[:, :, -1] += grad_last
        total = _scan_back(grad, log_kept)
        new, kept = log_new.exp(), log_kept.exp()
        previous = torch.cat([initial.unsqueeze(2), y[:, :, :-1].to(precise)], dim=2)
        # y_t depends on g_t - d_t - s_{t-1} through a_t alone: derivative a (1 - a) (x_t - y_{t-1}).
        pull = torch.linalg.vecdot(total, x.to(precise) - previous).double() * new * kept
        toward = torch.cat([-pull[:, :, 1:], grad_weight.double().unsqueeze(2)], dim=2)
        weight = _scan_back(toward[..., None], log_kept)[..., 0]
        grad_gate, grad_decay = pull + new * weight, kept * weight - pull
        grad_initial = total[:, :, 0] * kept[:, :, 0, None].to(precise)
        grad_x = (total * new[..., None].to(precise)).to(x.dtype)
        return grad_x, grad_gate, grad_decay, grad_initial, grad_decay[:, :, 0]


def _log_weights(log_gate: Tensor, log_decay: Tensor, initial: Tensor) -> Tensor:
    """`s_t = log(exp(g_t) + exp(d_t + s_{t-1}))` for all t, by doubling: only sums of logs, nothing cancels."""
    weight, decay = log_gate.clone(), log_decay
    weight[:, :, 0] = torch.logaddexp(log_gate[:, :, 0], log_decay[:, :, 0] + initial)
    reach = 1
    while reach < weight.shape[2]:
        earlier = decay[:, :, reach:] + weight[:, :, :-reach]
        weight = torch.cat([weight[:, :, :reach], torch.logaddexp(weight[:, :, reach:], earlier)], dim=2)
        decay = torch.cat([decay[:, :, :reach], decay[:, :, reach:] + decay[:, :, :-reach]], dim=2)
        reach *= 2
    return weight


def _shares(log_gate: Tensor, log_decay: Tensor, log_weight: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
    """The logs of a_t and 1 - a_t."""
    margin = log_gate - (log_decay + torch.cat([initial.unsqueeze(2), log_weight[:, :, :-1]], dim=2))
    return logsigmoid(margin), logsigmoid(-margin).clamp(min=LOG_ZERO)


def _scan_back(grad: Tensor, log_kept: Tensor) -> Tensor:
    """`total_t = grad_t + exp(log_kept_{t+1}) total_{t+1}`."""
    after = torch.cat([log_kept[:, :, 1:], torch.zeros_like(log_kept[:, :, :1])], dim=2)
    return _scan(grad.flip(2), after.flip(2), None).flip(2)


def _scan(x: Tensor, log_kept: Tensor, carry: Tensor | None) -> Tensor:
    """`y_t = x_t + exp(log_kept_t) y_{t-1}` with y_0 = `carry`; x (B, H, T, K), log_kept (B, H, T) at most 0."""
    steps = x.shape[2]
    chunk = min(CHUNK, steps)
    missing = -steps % chunk
    x = pad(x, (0, 0, 0, missing)).unflatten(2, (-1, chunk))
    log_kept = pad(log_kept, (0, missing)).unflatten(2, (-1, chunk)).cumsum(dim=-1)
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=x.device).triu(1)
    between = (log_kept[..., :, None] - log_kept[..., None, :]).masked_fill(later, LOG_ZERO)
    with torch.autocast(x.device.type, enabled=False):
        y = between.to(x.dtype).exp() @ x
    if x.shape[2] > 1:
        whole = log_kept[..., -1].clamp(min=LOG_ZERO)
        ends = _scan(y[..., -1, :], whole, carry)
        first = torch.zeros_like(ends[:, :, :1]) if carry is None else carry.unsqueeze(2)
        carry = torch.cat([first, ends[:, :, :-1]], dim=2)
    elif carry is not None:
        carry = carry.unsqueeze(2)
    if carry is not None:
        y = torch.addcmul(y, log_kept.exp().to(x.dtype)[..., None], carry.unsqueeze(3))
    return y.flatten(2, 3)[:, :, :steps]
