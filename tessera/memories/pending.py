"""Completing the pair whose value is not known yet, for every memory whose values look one step ahead."""

from typing import Protocol

import torch
from torch import Tensor

from tessera.base.shapes import Float, Int
from tessera.memories.documents import InDocument, last_document, stored_documents
from tessera.ops.unit_norm import unit_norm
from tessera.recall.pair_store import PairStore


class Pending(InDocument, Protocol):
    """What such a memory's state holds after step T."""

    @property
    def pairs(self) -> PairStore:
        """1..T-1"""

    @property
    def pending_key(self) -> Float[Tensor, "B H 1 K"]:
        """k_T"""

    @property
    def pending_value(self) -> Float[Tensor, "B H 1 V"]:
        """now_T: what v_T owes to x_T"""


def completed_pairs(
    keys: Float[Tensor, "B H T K"],
    now: Float[Tensor, "B H T V"],
    next_: Float[Tensor, "B H T V"],
    state: Pending | None,
    documents: Int[Tensor, "B T"] | None,
    norm_eps: float = 0.0,
) -> PairStore:
    """The pairs known at the last step: those of `state`, its pending pair, and all but the last of this call.

    `v_T = Norm(now_T + next_{T+1})`; keys (B, H, T, K), now and next (B, H, T, V), documents (B, T). A pair whose
    next step belongs to another document has no value and is stored as absent.
    """
    if state is None:
        keys, now, next_, steps = keys[:, :, :-1], now[:, :, :-1], next_[:, :, 1:], documents
    else:
        keys, now = _delayed(state.pending_key, keys), _delayed(state.pending_value, now)
        steps = None if documents is None else torch.cat([last_document(state, documents), documents], dim=1)
    pairs = (keys, unit_norm(now + next_, norm_eps), None if steps is None else stored_documents(steps))
    return PairStore.of(*pairs) if state is None else state.pairs.append(*pairs)


def _delayed(pending: Tensor, steps: Tensor) -> Tensor:
    """`steps` (B, H, T, ...) moved by one: what was pending before, and all but the last."""
    return pending if steps.shape[2] == 1 else torch.cat([pending, steps[:, :, :-1]], dim=2)
