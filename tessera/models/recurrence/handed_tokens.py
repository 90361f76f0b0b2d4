"""The memory of RMT and PRMT: states of memory tokens, handed on to the next segment."""

from dataclasses import dataclass

from torch import Tensor

from tessera.state import State


@dataclass(frozen=True)
class HandedTokens(State):
    """`tokens` (B, M, hidden)."""

    tokens: Tensor
