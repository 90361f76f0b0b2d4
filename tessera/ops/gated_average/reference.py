"""The gated average, one step after the other."""

import torch
from torch import Tensor

from tessera.ops.gated_average.state import GatedAverageState


def refuse(x: Tensor) -> str | None:
    """The reference takes every call."""
    return None


def run(
    x: Tensor, log_gate: Tensor, log_decay: Tensor, state: GatedAverageState, starts: Tensor | None
) -> tuple[Tensor, GatedAverageState]:
    """Numerator and weight of the average, both divided by the weight at every step; O(T) sequential steps.

    `s_t = log(exp(g_t) + exp(d_t + s_{t-1}))` is the log-weight, and `y_t = exp(g_t - s_t) x_t + exp(d_t + s_{t-1} -
    s_t) y_{t-1}`: the two factors sum to 1. Where `starts` (B, T) holds, `s_{t-1} = -inf`.
    """
    average, log_weight = state.average, state.log_weight
    outputs = []
    for t in range(x.shape[2]):
        if starts is not None:
            log_weight = log_weight.masked_fill(starts[:, t, None], -torch.inf)
        gate = log_gate[:, :, t].double()
        kept = log_decay[:, :, t].double() + log_weight
        log_weight = torch.logaddexp(gate, kept)
        new, old = torch.exp(gate - log_weight), torch.exp(kept - log_weight)
        average = (new[..., None] * x[:, :, t] + old[..., None] * average).to(state.average.dtype)
        outputs.append(average)
    return torch.stack(outputs, dim=2).to(x.dtype), GatedAverageState(average, log_weight)
