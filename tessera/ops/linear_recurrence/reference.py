"""The linear recurrence, one step after the other."""

import torch
from torch import Tensor

from tessera.ops.linear_recurrence.call import RecurrenceCall


def run(call: RecurrenceCall) -> tuple[Tensor, Tensor]:
    """`y_t = new_t x_t + keep_t y_{t-1}`; O(T) sequential steps."""
    x, dtype = call.x, call.state_dtype
    keep = call.keep if call.new is None else 1 - call.new
    state = torch.zeros_like(x[:, :, 0], dtype=dtype) if call.initial is None else call.initial
    outputs = []
    for t in range(x.shape[2]):
        added = x[:, :, t] if call.new is None else call.new[:, :, t, None] * x[:, :, t]
        state = (added + keep[:, :, t, None].to(dtype) * state).to(dtype)
        outputs.append(state)
    return torch.stack(outputs, dim=2).to(x.dtype), state
