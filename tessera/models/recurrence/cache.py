"""What generation carries from step to step: the memory, and the open segment's keys and values."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tessera.models.recurrence.state import MemoryState


@dataclass(frozen=True)
class SegmentCache:
    """A text read up to somewhere inside a segment.

    Attributes:
        memory: after the last closed segment; None while none is closed and no memory was given.
        attention: the base model's own cache of the open segment. It belongs to the next call, which may extend it in
            place: to go on twice from one point, keep the `memory_state` instead.
        length: ordinary tokens in the open segment. total: ordinary tokens read since this cache began.
        visible: booleans (B, length), or None when no position of the open segment is hidden.
        batch_size: number of rows.
    """

    memory: MemoryState | None
    attention: Any
    length: int
    total: int
    visible: Tensor | None
    batch_size: int

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens read (the name transformers asks for)."""
        return self.total

    def reorder(self, index: Tensor) -> "SegmentCache":
        """The cache of the rows `index`: what beam search asks for."""
        memory = None if self.memory is None else self.memory.select_batch(index)
        visible = None if self.visible is None else self.visible.index_select(0, index)
        attention = self.attention
        if hasattr(attention, "select_batch"):
            attention = attention.select_batch(index)
        elif attention is not None:
            attention.reorder_cache(index)
        return SegmentCache(memory, attention, self.length, self.total, visible, len(index))


@dataclass(frozen=True)
class GroupedCache:
    """Rows of different lengths: one cache for each set of rows (integers) that are equally far in their segment."""

    groups: tuple[tuple[Tensor, SegmentCache], ...]
    total: int

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Length of the padded text so far."""
        return self.total

    def reorder(self, index: Tensor) -> "GroupedCache":
        """The cache of the rows `index`: what beam search asks for."""
        groups = []
        for rows, cache in self.groups:
            place = {row: i for i, row in enumerate(rows.tolist())}
            pairs = [(new, place[old]) for new, old in enumerate(index.tolist()) if old in place]
            if pairs:
                new, old = torch.tensor(pairs, device=index.device).unbind(1)
                groups.append((new, cache.reorder(old)))
        return GroupedCache(tuple(groups), self.total)
