"""Pairs in front of a text, for every layer: what PEFT's prefix tuning and its Cartridges learn."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from tessera.base.errors import expect
from tessera.base.state import State
from tessera.memories.pair_memory import PairMemoryState
from tessera.models.stack_state import StackState


@dataclass(frozen=True)
class Prefix(State):
    """One (keys, values), each (B, H, N, width), for every layer: N pairs that were stored before a text begins."""

    layers: tuple[tuple[Tensor, Tensor], ...]
    is_compileable: ClassVar[bool] = False  # as of `StackState`

    @classmethod
    def of(cls, layers: Sequence[Tensor]) -> Self:
        """From PEFT's tensors (2, B, H, N, width)."""
        return cls(tuple((layer[0], layer[1]) for layer in layers))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """N."""
        return self.layers[layer_idx][0].shape[2]

    def state(self, where: str, layers: Iterable[Any]) -> StackState:
        """What a stack of these layers goes on from. Raises `TesseraError` where it has no pairs, or of other sizes."""
        advice = "Its memories are matrices, which hold no pairs."
        layers = list(layers)
        have_pairs = all(hasattr(layer, "begun_with") for layer in layers)
        expect(have_pairs, where, "past_key_values", "be left out", "pairs", advice)
        got, needed = len(self.layers), len(layers)
        expect(got == needed, where, "past_key_values", f"hold pairs for {needed} layers", got)
        states = tuple(layer.begun_with(*pairs) for layer, pairs in zip(layers, self.layers))
        keys = self.layers[0][0]
        document = torch.zeros(keys.shape[0], 1, dtype=torch.long, device=keys.device)
        return StackState(states, self.get_seq_length(), document)


def stored_pairs(state: StackState) -> list[tuple[Tensor, Tensor]]:
    """The finished (keys, values) of every layer, of its memory that forgets none: what a prefix can begin as."""
    memories = []
    for layer in state.layers:
        stores = [memory for memory in layer if isinstance(memory, PairMemoryState)] if isinstance(layer, tuple) else []
        expect(bool(stores), "StackState", "the model", "have memories of pairs", "matrices")
        memories.append((stores[-1].pairs.keys, stores[-1].pairs.values))
    return memories
