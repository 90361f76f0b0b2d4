"""Memory tokens: their learned embeddings, and what of them RMT and PRMT carry to the next segment."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import initialization as init

from tessera.state import State


class MemoryTokens(nn.Module):
    """`tokens` (M, hidden) from N(0, std^2), on the device of the token embeddings `like`; None: with their spread."""

    def __init__(self, count: int, like: Tensor, std: float | None = None):
        super().__init__()
        self.std = std
        self.tokens = nn.Parameter(torch.empty(count, like.shape[1], dtype=like.dtype, device=like.device))
        self.reset_parameters(like)

    def reset_parameters(self, like: Tensor) -> None:
        """Draw the tokens, with the spread of `like` if they have none of their own."""
        if not like.is_meta:
            init.normal_(self.tokens, 0.0, float(like.detach().float().std()) if self.std is None else self.std)

    def forward(self, batch: int) -> Tensor:
        """(B, M, hidden)."""
        return self.tokens.expand(batch, -1, -1)


@dataclass(frozen=True)
class CarriedTokens(State):
    """States of memory tokens, carried to the next segment: `tokens` (B, M, hidden)."""

    tokens: Tensor
