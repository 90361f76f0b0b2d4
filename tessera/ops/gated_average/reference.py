"""The gated average, one step after the other."""

import torch
from torch import Tensor

from tessera.ops.gated_average.call import GatedAverageCall, GatedAverageState


def run(call: GatedAverageCall) -> tuple[Tensor, GatedAverageState]:
    """Numerator and weight of the average, both divided by the weight at every step; O(T) sequential steps.

    `s_t = log(exp(g_t) + exp(d_t + s_{t-1}))` is the log-weight, and `y_t = exp(g_t - s_t) x_t + exp(d_t + s_{t-1} -
    s_t) y_{t-1}`: the two factors sum to 1. Where d_t = -inf, a document begins.
    """
    average, log_weight = call.state.average, call.state.log_weight
    outputs = []
    for t in range(call.x.shape[2]):
        gate = call.log_gate[:, :, t].double()
        kept = call.log_decay[:, :, t].double() + log_weight
        log_weight = torch.logaddexp(gate, kept)
        new, old = torch.exp(gate - log_weight), torch.exp(kept - log_weight)
        average = (new[..., None] * call.x[:, :, t] + old[..., None] * average).to(average.dtype)
        outputs.append(average)
    return torch.stack(outputs, dim=2).to(call.x.dtype), GatedAverageState(average, log_weight)
