"""States of pairs from several documents as one, and without some of their pairs.

What a stack of pair memories (v1, v2) keeps of a document does not depend on the documents before it, so that states of
documents that were read apart make up the state of one that read them all, and a document that is left out was never
read. Behind them a question sees the pairs of all, and goes on from the end of the last.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tessera.memories.pair_memory import PairMemoryState
from tessera.memories.persistent import PersistentState
from tessera.models.fingerprint import shared
from tessera.models.stack_state import StackState
from tessera.recall.pair_store import PairStore


def is_of_pairs(state: Any) -> bool:
    """Whether each layer keeps pairs, and nothing else that grows or forgets."""
    layers = [layer if isinstance(layer, tuple) else (layer,) for layer in getattr(state, "layers", ())]
    known = PairMemoryState | PersistentState | None  # of another memory the last document alone would stay
    return isinstance(state, StackState) and all(
        any(isinstance(memory, PairMemoryState) for memory in layer) and all(isinstance(m, known) for m in layer)
        for layer in layers
    )


def together(states: Sequence[StackState]) -> StackState:
    """One state whose pairs are those of all `states`, as of one document.

    Equal to the state of a model that read them one behind the other with `document_ids`, whose pairs then all count as
    document 0: the pair of the last token of a document, whose value never came, is stored as absent.
    Raises `TesseraError`: states of different models.
    """
    if len(states) == 1:
        return states[0]
    last = states[-1]
    zero = _zero(last)
    layers = tuple(_together(parts, zero) for parts in zip(*(state.layers for state in states), strict=True))
    model = shared("Memory", [state.model for state in states])
    return replace(last, layers=layers, length=sum(state.length for state in states), document=zero, model=model)


def without(state: StackState, first: int, end: int) -> StackState:
    """`state` without the pairs of its steps `first` to `end - 1`."""
    newest = state.length - 2  # the last step's pair waits for its value

    def cut(memory: Any) -> Any:
        """A memory, or the memories of a layer, in which the pairs of these steps count as padding."""
        if isinstance(memory, tuple):
            return tuple(cut(inner) for inner in memory)
        if isinstance(memory, PairMemoryState):
            pairs = memory.pairs
            offset = newest + 1 - pairs.length  # the step of the oldest pair
            documents = pairs.known_documents().clone()
            documents[:, max(0, first - offset) : max(0, end - offset)] = -1
            memory = replace(memory, pairs=PairStore.of(pairs.keys, pairs.values, documents))
        return _in_document(memory, _zero(state))

    return replace(state, layers=cut(state.layers), document=_zero(state))


def _together(parts: Sequence[Any], zero: Tensor) -> Any:
    last = parts[-1]
    if isinstance(last, tuple):
        return tuple(_together(inner, zero) for inner in zip(*parts, strict=True))
    if not isinstance(last, PairMemoryState):
        return _in_document(last, zero)
    stores = [part.pairs for part in parts]
    absent = torch.zeros_like(last.pending_key), torch.zeros_like(last.pending_value)
    keys = [tensor for store in stores for tensor in (store.keys, absent[0])][:-1]
    values = [tensor for store in stores for tensor in (store.values, absent[1])][:-1]
    documents = [tensor for store in stores for tensor in (store.known_documents(), zero - 1)][:-1]
    pairs = PairStore.of(torch.cat(keys, 2), torch.cat(values, 2), torch.cat(documents, 1))
    position = None if last.position is None else sum(part.position for part in parts) - (len(parts) - 1)
    return replace(_in_document(last, zero), pairs=pairs, position=position)


def _in_document(memory: Any, document: Tensor) -> Any:
    return replace(memory, document=document) if hasattr(memory, "document") else memory


def _zero(state: StackState) -> Tensor:
    """The number (1, 1) of the document that all steps count as."""
    memory: Any = state.layers[0]
    memory = memory[0] if isinstance(memory, tuple) else memory
    return torch.zeros(1, 1, dtype=torch.long, device=memory.pending_key.device)
