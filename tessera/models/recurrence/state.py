"""What is carried: from segment to segment the memory, from call to call the open segment beside it; values all."""

import copy
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from tessera.base.errors import TesseraError, expect
from tessera.base.files import writing
from tessera.base.state import CLASSES, State
from tessera.models.fingerprint import expect_same_model, is_fingerprint, shared
from tessera.models.forking import PastValue, apart, fork
from tessera.models.saving.state_file import StateFile, save_values

_NOT_CUT = (AttributeError, RuntimeError, ValueError)  # what caches raise that cannot be cut back
MADE_BY = "made_by"  # in a memory file: what tells model and tokenizer exactly


@dataclass(frozen=True)
class MemoryState(State):
    """What a segmented model remembers. Its size does not depend on how much was read.

    Attributes:
        layers: one state per memory (ARMT, PRMT: per layer; RMT: one). tokens_read, segments_read: integers (B,).
        model: the fingerprint of the model that it is of; None: unknown.
    """

    layers: tuple[State, ...]
    tokens_read: Tensor
    segments_read: Tensor
    model: str | None = None

    kind: ClassVar[str]

    @property
    def batch_size(self) -> int:
        """B."""
        return self.tokens_read.shape[0]

    def after(self, layers: Sequence[State], tokens: Tensor | int) -> Self:
        """The state after one more segment of `tokens` (an integer, or integers (B,)) left `layers`."""
        return type(self)(tuple(layers), self.tokens_read + tokens, self.segments_read + 1, self.model)

    def detach_rows(self, is_cut: Sequence[bool]) -> Self:
        """Some rows cut off from the autograd graph."""
        if all(is_cut):
            return self.detach()
        if not any(is_cut):
            return self
        rows = torch.tensor(is_cut, device=self.tokens_read.device)
        return self.map(lambda tensor: torch.where(rows.view(-1, *[1] * (tensor.dim() - 1)), tensor.detach(), tensor))

    def repeat_batch(self, times: int) -> Self:
        """Every row `times` times, next to each other: many questions to the same memory, beams."""
        return self.map(lambda tensor: tensor.repeat_interleave(times, 0))

    def for_batch(self, rows: int) -> Self:
        """This state with `rows` rows, each of its own repeated equally often; `rows` must be a multiple of them."""
        return self if self.batch_size == rows else self.repeat_batch(rows // self.batch_size)

    @classmethod
    def stack(cls, states: Sequence[Self]) -> Self:
        """One batch of the rows of all `states`, in that order. Raises `TesseraError`: states of different models."""
        return replace(cls.joined(states), model=shared(f"{cls.__name__}.stack", [state.model for state in states]))

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        named = {"tokens_read": self.tokens_read, "segments_read": self.segments_read}
        for index, layer in enumerate(self.layers):
            named |= {f"layers.{index}.{field.name}": getattr(layer, field.name) for field in fields(layer)}
        return named

    def save(self, path: str | os.PathLike, model: str | None = None) -> None:
        """Write a memory file of this state alone; `load` inverts it exactly. `model`: see `made_by` of a memory.

        Raises `TesseraError`: the file cannot be written.
        """
        document = {"name": "", "state": self}
        with writing(Path(path), "the memory"):
            save_values(Path(path), self.kind, {MADE_BY: model, "documents": [document]})

    @classmethod
    def load(cls, path: str | os.PathLike, device: str | torch.device = "cpu") -> Self:
        """The state at the end of a memory file. Raises `TesseraError` for any other file."""
        where = f"{cls.__name__}.load"
        file = StateFile.open(Path(path), where)
        expect(file.kind == cls.kind, where, "path", f"be a stored {cls.kind} memory", f"{file.kind} file")
        state = file.values(device)["documents"][-1]["state"]
        is_whole = state.model is None or is_fingerprint(state.model)
        expect(is_whole, where, "path", "be a memory as it was stored", f"{os.fspath(path)!r}, which was changed")
        return state

    def expect_fits(self, template: "MemoryState", where: str) -> None:
        """Raise `TesseraError` unless this is a state of the model whose empty state is `template`."""
        kind = type(template)
        expect(type(self) is kind, where, "memory_state", f"be {kind.__name__}", type(self).__name__)
        mine, other = self.tensors(), template.tensors()
        shapes = [{name: tuple(t.shape[1:]) for name, t in named.items()} for named in (mine, other)]
        names = sorted(shapes[0].keys() | shapes[1].keys())
        different = next((name for name in names if shapes[0].get(name) != shapes[1].get(name)), "")
        sizes = f"{different} {shapes[1].get(different)} per row"
        same = f"come from a model of the same sizes ({sizes})"
        expect(not different, where, "memory_state", same, shapes[0].get(different))
        expect_same_model(where, "memory_state", self.model, template.model)


@dataclass(frozen=True)
class CarriedTokens(State):
    """States of memory tokens, carried to the next segment: `tokens` (B, M, hidden)."""

    tokens: Tensor


class RowMemories:
    """The memory of each row of a text, while rows are read together, apart, or have ended.

    Sets of rows that hold their states together: a state is copied only where rows join or part. A state of fewer rows
    than it serves stays so until then.
    """

    def __init__(self, rows: Sequence[int], state: MemoryState | None):
        self.parts: list[tuple[tuple[int, ...], MemoryState | None]] = [(tuple(rows), state)]

    def put(self, rows: tuple[int, ...], state: MemoryState | None) -> None:
        """Keep the state of rows that were taken; None while they have read nothing."""
        self.parts.append((rows, state))

    def take(self, rows: tuple[int, ...]) -> MemoryState | None:
        """Take out the state of these rows, in their order."""
        parts, self.parts = self.parts, []
        taken, of_interest = [], set(rows)
        for together, state in parts:
            chosen = [row for row in together if row in of_interest]
            others = [row for row in together if row not in of_interest]
            if chosen:
                taken.append((tuple(chosen), _of_rows(state, together, chosen)))
            if others:
                self.parts.append((tuple(others), _of_rows(state, together, others)))
        return _together(taken, rows)

    def all(self, empty: Callable[[int], MemoryState]) -> MemoryState | None:
        """The state of all rows, which stay; `empty(n)` of n rows that have read nothing, unless none has."""
        if all(state is None for _, state in self.parts):
            return None
        parts = [(rows, empty(len(rows)) if state is None else state) for rows, state in self.parts]
        return _together(parts, tuple(sorted(row for rows, _ in parts for row in rows)))


def _of_rows(state: MemoryState | None, held: Sequence[int], rows: list[int]) -> MemoryState | None:
    if state is None or len(rows) == len(held):
        return state
    index_of = {row: index for index, row in enumerate(held)}
    return state.for_batch(len(held)).select_batch(torch.tensor([index_of[row] for row in rows]))


def _together(parts: Sequence[tuple[tuple[int, ...], MemoryState | None]], rows: tuple[int, ...]) -> MemoryState | None:
    if parts[0][1] is None or (len(parts) == 1 and parts[0][0] == rows):
        return parts[0][1]
    index_of = {row: index for index, row in enumerate(row for held, _ in parts for row in held)}
    states = [state.for_batch(len(held)) for held, state in parts if state is not None]
    stacked = states[0] if len(states) == 1 else type(states[0]).stack(states)
    return stacked.select_batch(torch.tensor([index_of[row] for row in rows]))


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
    is_full: bool = False  # whether it ends where the next token comes

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
        attention, index = self.again(), torch.tensor(rows)
        visible = None if self.visible is None else self.visible.index_select(0, index.to(self.visible.device))
        if in_place and hasattr(attention, "reorder_cache"):
            attention.reorder_cache(index)
        elif attention is not None:
            attention = fork(attention, index)
        return replace(self, memory=memory, attention=attention, visible=visible, batch_size=len(rows))


@dataclass(frozen=True)
class SegmentCache(PastValue):
    """A text read up to somewhere inside a segment: for each set of rows that are equally far, their open segment."""

    groups: tuple[tuple[tuple[int, ...], OpenSegment], ...]  # row numbers and their segment
    total: int  # length of the text, with its padding, since this cache began
    model: str | None = None  # the fingerprint of the model that it is of
    tokens: Tensor | None = None  # of `total`, those of each row that no mask hid (B, 1); None: all

    @property
    def tokens_read(self) -> int | Tensor:
        """`tokens`, or their number in all rows alike."""
        return self.total if self.tokens is None else self.tokens

    @property
    def batch_size(self) -> int:
        """Number of rows."""
        return sum(len(rows) for rows, _ in self.groups)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens read."""
        return self.total

    def open_segment(self, rows: tuple[int, ...]) -> OpenSegment:
        """What `rows`, all or some of a group, go on with; of some without their memory."""
        held, segment = next(group for group in self.groups if rows[0] in group[0])
        return segment if rows == held else segment.select([held.index(row) for row in rows], None, in_place=False)

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
        tokens = None if self.tokens is None else self.tokens[torch.tensor(chosen, device=self.tokens.device)]
        return replace(self, groups=tuple(groups), tokens=tokens)


CLASSES |= {cls.__name__: cls for cls in (OpenSegment, SegmentCache)}


def remembering(attention: Any) -> Any:
    """A base's cache that keeps what leaves its sliding windows, so that one may go on from here twice."""
    for layer in getattr(attention, "layers", ()):
        if type(layer) is DynamicSlidingWindowLayer:
            layer.activate_past_recording()
    return attention
