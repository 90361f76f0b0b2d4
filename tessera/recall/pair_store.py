"""Stored key-value pairs that grow by appending, as a value."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from tessera.base.devices import is_exporting, is_frozen
from tessera.base.shapes import Float, Int
from tessera.base.state import State

SMALLEST_CAPACITY = 64
_CLAIMING = threading.Lock()  # threads may append to one store at the same time, as a server's do that share a prompt


class _Tip:
    """What all stores share that look at one pair of buffers: how many pairs are in use, and what is filed of them.

    `filed`, `queries_to_scan` and `patience` belong to `recall_through_index`.
    """

    def __init__(self, used: int) -> None:
        self.used = used
        self.filed: dict[int, Any] = {}
        self.queries_to_scan = self.patience = 0

    def grown(self, length: int, end: int) -> "_Tip":
        """Of larger buffers with the same first `length` pairs; what lies behind them, up to `end`, may be others."""
        tip = _Tip(length)
        tip.queries_to_scan, tip.patience = self.queries_to_scan, self.patience
        tip.filed = self.filed
        tip.cut(length)
        tip.used = end
        return tip

    def cut(self, length: int) -> None:
        """Only the first `length` pairs are in use from now on."""
        self.used = length
        filed = self.filed.copy()  # another thread may file meanwhile
        self.filed = {row: index for row, index in filed.items() if index.filed <= length}


@dataclass(frozen=True)
class PairStore(State):
    """The pairs 1..N of every head: keys (B, H, N, K), values (B, H, N, V), documents (B, N) or None (all one).

    Appending costs O(1) per pair, amortised: the buffers have room to spare, and the newest store of a buffer writes
    into it. A store stays what it was when another is made from it: an older store that is appended to copies first.
    """

    key_buffer: Float[Tensor, "B H room K"]
    value_buffer: Float[Tensor, "B H room V"]
    document_buffer: Int[Tensor, "B room"] | None
    length: int
    tip: _Tip = field(compare=False, repr=False)

    @classmethod
    def of(
        cls,
        keys: Float[Tensor, "B H N K"],
        values: Float[Tensor, "B H N V"],
        documents: Int[Tensor, "B N"] | None = None,
    ) -> Self:
        """A store that holds exactly these pairs."""
        return cls(keys, values, documents, keys.shape[2], _Tip(keys.shape[2]))

    def parts(self) -> dict[str, Any]:
        """The pairs, without the room to spare."""
        return {"keys": self.keys, "values": self.values, "documents": self.documents}

    @classmethod
    def from_parts(cls, parts: dict[str, Any]) -> Self:
        """See `State.from_parts`."""
        return cls.of(**parts)

    @property
    def keys(self) -> Float[Tensor, "B H N K"]:
        """Of the pairs in use."""
        is_full = self.length == self.key_buffer.shape[2]
        return self.key_buffer if is_full else self.key_buffer[:, :, : self.length]

    @property
    def values(self) -> Float[Tensor, "B H N V"]:
        """Of the pairs in use."""
        is_full = self.length == self.value_buffer.shape[2]
        return self.value_buffer if is_full else self.value_buffer[:, :, : self.length]

    @property
    def documents(self) -> Int[Tensor, "B N"] | None:
        """Of the pairs in use; None: all of one."""
        return None if self.document_buffer is None else self.document_buffer[:, : self.length]

    def known_documents(self) -> Int[Tensor, "B N"]:
        """Of the pairs in use; 0 where all are of one."""
        return _one_document(self.keys) if self.documents is None else self.documents

    def of_documents(self, documents: Int[Tensor, "B N"]) -> Self:
        """The same keys and values, not copied, as pairs of other documents; it is appended to as this store is."""
        room = self.key_buffer.shape[2] - self.length
        return replace(self, document_buffer=pad(documents, (0, room), value=-1))

    def append(
        self,
        keys: Float[Tensor, "B H n K"],
        values: Float[Tensor, "B H n V"],
        documents: Int[Tensor, "B n"] | None = None,
    ) -> Self:
        """This store with `keys` (B, H, n, K) and `values` (B, H, n, V) appended to its own pairs."""
        end = self.length + keys.shape[2]
        if documents is not None and self.document_buffer is None:
            return self.of(self.keys, self.values, self.known_documents()).append(keys, values, documents)
        if documents is None and self.document_buffer is not None:
            documents = _one_document(keys)
        tensors = (keys, values, self.key_buffer, self.value_buffer)
        trained = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        if trained or torch.compiler.is_compiling():  # a graph knows no lock, and may be called with any store
            stored = self.documents
            joined = None if documents is None or stored is None else torch.cat([stored, documents], dim=1)
            return self.of(torch.cat([self.keys, keys], dim=2), torch.cat([self.values, values], dim=2), joined)
        store = self.with_room(end)
        # Autograd may have kept the pairs in use (of a trained query). It need not know of what is written behind them.
        store.key_buffer.data[:, :, self.length : end] = keys
        store.value_buffer.data[:, :, self.length : end] = values
        if documents is not None and store.document_buffer is not None:
            store.document_buffer[:, self.length : end] = documents
        return type(self)(store.key_buffer, store.value_buffer, store.document_buffer, end, store.tip)

    def with_room(self, end: int) -> Self:
        """The same pairs, in buffers whose places up to `end` nobody but the caller writes."""
        has_room = self._fits(end)
        with _CLAIMING:
            if has_room and self.tip.used == self.length:
                self.tip.used = end
                return self
        return self._grown(end, max(SMALLEST_CAPACITY, 2 * end))

    def take_back(self) -> None:
        """See `State.take_back`."""
        self.tip.cut(self.length)

    def reclaim(self, after: Self) -> None:
        """See `State.reclaim`. Whoever appended last to these buffers has the places behind this store to itself."""
        with _CLAIMING:
            if after.tip is self.tip and self.tip.used == after.length:
                self.tip.cut(self.length)

    def roomy(self, count: int) -> Self:
        """The same pairs, with room for `count` more."""
        is_free = self._fits(self.length + count) and self.tip.used == self.length
        return self if is_free else self._grown(self.length, self.length + count)

    def newest(self, count: int) -> Self:
        """A store of the last `count` pairs, or this one while it has at most twice as many: O(1) copied per pair."""
        first = self.length - count
        if is_exporting():
            first = torch.sym_max(0, first)  # an exported program takes any length
        elif self.length <= 2 * count + 1:
            return self
        last = torch.arange(first, self.length, device=self.key_buffer.device)
        documents = None if self.documents is None else self.documents.index_select(1, last)
        return self.of(self.keys.index_select(2, last), self.values.index_select(2, last), documents)

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """The same pairs, compacted, with `function` applied to every tensor."""
        documents = None if self.documents is None else function(self.documents)
        return self.of(function(self.keys), function(self.values), documents)

    @classmethod
    def joined(cls, states: Sequence[Self]) -> Self:
        """See `State.joined`. Before the pairs of the shorter stores stand some that are not there."""
        fronts = [max(store.length for store in states) - store.length for store in states]
        keys = torch.cat([pad(store.keys, (0, 0, front, 0)) for store, front in zip(states, fronts)])
        values = torch.cat([pad(store.values, (0, 0, front, 0)) for store, front in zip(states, fronts)])
        if not any(fronts) and all(store.documents is None for store in states):
            return cls.of(keys, values)
        documents = [pad(store.known_documents(), (front, 0), value=-1) for store, front in zip(states, fronts)]
        return cls.of(keys, values, torch.cat(documents))

    def _fits(self, end: int) -> bool:
        buffers = [buffer for buffer in (self.key_buffer, self.document_buffer) if buffer is not None]
        return end <= self.key_buffer.shape[2] and not any(map(is_frozen, buffers))

    def _grown(self, end: int, capacity: int) -> Self:
        room = capacity - self.length
        documents = None if self.documents is None else pad(self.documents, (0, room), value=-1)
        return type(self)(
            pad(self.keys, (0, 0, 0, room)),
            pad(self.values, (0, 0, 0, room)),
            documents,
            self.length,
            self.tip.grown(self.length, end),
        )


def _one_document(keys: Tensor) -> Tensor:
    return torch.zeros(keys.shape[0], keys.shape[2], dtype=torch.long, device=keys.device)
