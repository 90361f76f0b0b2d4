"""The leaky average, one step after the other."""

import torch
from torch import Tensor


def run(x: Tensor, decay: Tensor, initial_state: Tensor | None, starts: Tensor | None) -> Tensor:
    """`y_t = x_t + decay y_{t-1}`, restarted where `starts` (B, T) holds; O(T) sequential steps."""
    state = torch.zeros_like(x[:, :, 0]) if initial_state is None else initial_state
    outputs = []
    for t in range(x.shape[2]):
        if starts is not None:
            state = torch.where(starts[:, t, None, None], 0.0, state)
        state = x[:, :, t] + decay[:, None].to(x.dtype) * state
        outputs.append(state)
    return torch.stack(outputs, dim=2)


def refuse(x: Tensor) -> str | None:
    """The reference takes every call."""
    return None
