"""How documents continue from one call of a memory to the next.

Documents are integers per step (B, T); a negative one is padding. A state keeps the document of its last step, or None
when everything it has read belongs to one document, which then counts as document 0.
"""

from typing import Protocol

import torch
from torch import Tensor

from tessera.base.errors import expect
from tessera.base.shapes import Documents, Float, Int
from tessera.ops.gated_average import GatedAverageState

# A pair that is not stored is of document -1, which these would take for their largest number.
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)


class Continues(Protocol):
    """What a state tells about where its sequence stands."""

    @property
    def document(self) -> Int[Tensor, "B 1"] | None:
        """Of the last step; None: all steps so far belong to one."""

    @property
    def carry(self) -> Tensor | GatedAverageState:
        """The key extractor's average."""


def last_document(state: Continues, documents: Int[Tensor, "B T"]) -> Int[Tensor, "B 1"]:
    """The document (B, 1) of the last step of `state`."""
    return torch.zeros_like(documents[:, :1]) if state.document is None else state.document


def continued_documents(x: Float[Tensor, "B T ..."], state: Continues | None, documents: Documents) -> Documents:
    """The documents of the steps of `x` (B, T, ...); steps without given documents continue the last one."""
    if documents is not None and documents.dtype in UNSIGNED:
        expect(False, "memory", "documents", "be of a type with a sign", documents.dtype, "Give documents.long().")
    if documents is None and state is not None and state.document is not None:
        return state.document.clamp(min=0).expand(-1, x.shape[1])  # behind padding alone a text starts
    return documents


def continued_carry(
    state: Continues | None, documents: Documents
) -> Float[Tensor, "B H carried"] | GatedAverageState | None:
    """The average to continue from: empty where a new document begins, None without a state."""
    if state is None or documents is None:
        return None if state is None else state.carry
    continues = (documents[:, :1] == last_document(state, documents))[:, 0]
    if isinstance(state.carry, GatedAverageState):
        return state.carry.kept(continues)
    return torch.where(continues[:, None, None], state.carry, 0.0)


def stored_documents(previous: Int[Tensor, "B T"]) -> Int[Tensor, "B T-1"]:
    """The document of each pair (B, T - 1); -1, not stored, where its next step, its value, is of another document."""
    return torch.where(previous[:, 1:] == previous[:, :-1], previous[:, :-1], -1)
