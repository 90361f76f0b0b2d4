"""The memory of ARMT: one association matrix and normaliser per layer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tessera.memories.association import AssociationState
from tessera.models.recurrence.state import MemoryState


@dataclass(frozen=True)
class ARMTState(MemoryState):
    """Association matrices of all layers. Size: L B P (V + 1) numbers, however much was read."""

    layers: tuple[AssociationState, ...]

    kind = "armt"
    layer_state = AssociationState

    @property
    def A(self) -> Tensor:
        """The association matrices (L, B, P, V)."""
        return torch.stack([layer.matrix for layer in self.layers])

    @property
    def z(self) -> Tensor:
        """The normalisers (L, B, P)."""
        return torch.stack([layer.normaliser for layer in self.layers])
