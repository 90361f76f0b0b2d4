"""What linear attention carries from step to step."""

from dataclasses import dataclass

from torch import Tensor

from tessera.base.shapes import Float, Int
from tessera.base.state import State


@dataclass(frozen=True)
class LinearAttentionState(State):
    """`matrix` S (B, H, K, V) after the last step, and that step's `document` (B, 1)."""

    matrix: Float[Tensor, "B H K V"]
    document: Int[Tensor, "B 1"]
