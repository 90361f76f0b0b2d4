"""What linear attention carries from step to step."""

from dataclasses import dataclass

from torch import Tensor

from tessera.state import State


@dataclass(frozen=True)
class LinearAttentionState(State):
    """`matrix` S (B, H, K, V) after the last step, and that step's `document` (B, 1)."""

    matrix: Tensor
    document: Tensor
