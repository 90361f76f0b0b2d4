"""What is carried from segment to segment: the memory, a value."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar, Self

import torch
from torch import Tensor

from tessera.base.errors import expect
from tessera.base.state import State
from tessera.models.fingerprint import expect_same_model, is_fingerprint, shared
from tessera.models.saving.state_file import StateFile, save_values

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
        """Write a memory file of this state alone; `load` inverts it exactly. `model`: see `made_by` of a memory."""
        document = {"name": "", "state": self}
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
        expect(
            type(self) is type(template), where, "memory_state", f"be {type(template).__name__}", type(self).__name__
        )
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
