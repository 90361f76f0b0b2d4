"""What is carried from call to call: the open segment of each row beside its memory. All are values."""

import copy
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from tessera.base.errors import TesseraError, expect
from tessera.base.state import CLASSES, State
from tessera.models.forking import PastValue, apart
from tessera.models.recurrence.state import MemoryState

_NOT_CUT = (AttributeError, RuntimeError, ValueError)  # what caches raise that cannot be cut back


@dataclass(frozen=True)
class OpenSegment:
    """Rows that are equally far in a segment."""

    # After the last closed segment; None while none is closed and no memory was given. One that was given may have
    # fewer rows than the text: each serves as many consecutive ones.
    memory: MemoryState | None
    attention: Any  # the base's own cache of the segment, which a call extends in place; `again` gives it as it was
    attention_length: int  # its positions when this was made
    length: int  # ordinary tokens in the segment
    visible: Tensor | None  # booleans (B, length); None when no position is hidden
    batch_size: int

    def again(self) -> Any:
        """The base's cache of the segment, as it was when this was made: one may go on from here twice.

        Raises `TesseraError`: it was gone on from before, and this base's cache cannot be cut back.
        """
        attention = self.attention
        if attention is None or hasattr(attention, "select_batch"):  # nothing, or a value
            return attention
        if attention.get_seq_length() == self.attention_length:
            return attention
        copied = apart(attention)
        try:
            copied.crop(self.attention_length - attention.get_seq_length())  # below 0: so many are taken away
        except _NOT_CUT as error:
            raise TesseraError(
                f"forward: past_key_values must not have been continued before, since the base's "
                f"{type(attention).__name__} cannot be cut back ({error}); got one that was. "
                "Continue copies of it: past_key_values.select_batch(rows)."
            ) from None
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> "OpenSegment":
        """See `State.__deepcopy__`."""
        return replace(self, memory=copy.deepcopy(self.memory, memo), attention=apart(self.attention))

    def take_back(self) -> None:
        """See `State.take_back`."""
        if isinstance(self.attention, State):
            self.attention.take_back()
        # Other layers lose what earlier states need, or are not cut while these are: `again` cuts copies of them.
        elif all(type(layer) is DynamicLayer for layer in getattr(self.attention, "layers", ())):
            with suppress(*_NOT_CUT):  # `again` will say so
                self.attention.crop(self.attention_length - self.attention.get_seq_length())

    def select(self, rows: list[int], memory: MemoryState | None, in_place: bool) -> "OpenSegment":
        """Some of the rows, and their memory; `in_place` changes the base's cache."""
        attention = self.again() if in_place else apart(self.again())
        index = torch.tensor(rows)
        visible = None if self.visible is None else self.visible.index_select(0, index.to(self.visible.device))
        if hasattr(attention, "select_batch"):
            attention = attention.select_batch(index)
        elif attention is not None:
            attention.reorder_cache(index)
        return replace(self, memory=memory, attention=attention, visible=visible, batch_size=len(rows))


@dataclass(frozen=True)
class SegmentCache(PastValue):
    """A text read up to somewhere inside a segment: for each set of rows that are equally far, their open segment."""

    groups: tuple[tuple[tuple[int, ...], OpenSegment], ...]  # row numbers and their segment
    total: int  # length of the text, with its padding, since this cache began
    model: str | None = None  # the fingerprint of the model that it is of

    @property
    def batch_size(self) -> int:
        """Number of rows."""
        return sum(len(rows) for rows, _ in self.groups)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens read."""
        return self.total

    def take_back(self) -> None:
        """See `State.take_back`."""
        for _, segment in self.groups:
            segment.take_back()

    def reorder(self, index: Tensor) -> "SegmentCache":
        """The cache of the rows `index`: what beam search asks for. This one is used up."""
        return self._select(index.tolist(), in_place=True)

    def select_batch(self, index: Tensor) -> "SegmentCache":
        """The cache of the rows `index`, apart from this one: both may be gone on from."""
        return self._select(index.tolist())

    def repeat_batch(self, times: int) -> "SegmentCache":
        """Every row `times` times, next to each other; the memory is not copied but shared."""
        return self._select([row for row in range(self.batch_size) for _ in range(times)], times)

    def _select(self, chosen: list[int], times: int | None = None, in_place: bool = False) -> "SegmentCache":
        groups, known = [], {row for rows, _ in self.groups for row in rows}
        expect(known.issuperset(chosen), "SegmentCache", "chosen rows", f"be among {sorted(known)[:8]}", chosen[:8])
        for rows, segment in self.groups:
            pairs = [(new, rows.index(old)) for new, old in enumerate(chosen) if old in rows]
            if pairs:
                new, old = map(list, zip(*pairs))
                memory = segment.memory
                if memory is not None and times is None:
                    memory = memory.for_batch(segment.batch_size).select_batch(torch.tensor(old))
                groups.append((tuple(new), segment.select(old, memory, in_place)))
        return replace(self, groups=tuple(groups))


CLASSES |= {cls.__name__: cls for cls in (OpenSegment, SegmentCache)}


def remembering(attention: Any) -> Any:
    """A base's cache that keeps what leaves its sliding windows, so that one may go on from here twice."""
    for layer in getattr(attention, "layers", ()):
        if type(layer) is DynamicSlidingWindowLayer and hasattr(layer, "activate_past_recording"):
            layer.activate_past_recording()
    return attention
