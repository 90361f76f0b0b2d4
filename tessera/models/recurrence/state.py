"""What is carried: the memory from segment to segment, and from call to call the open segment too. All are values."""

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from tessera.base.checkpoints import tensor_checksum
from tessera.base.errors import TesseraError, expect
from tessera.base.files import write_atomically
from tessera.base.state import State

CHECKSUM, MODEL = "crc32", "model"  # in the metadata of a file


@dataclass(frozen=True)
class MemoryState(State):
    """What a segmented model remembers. Its size does not depend on how much was read.

    Attributes:
        layers: one state per memory (ARMT, PRMT: per layer; RMT: one). tokens_read, segments_read: integers (B,).
    """

    layers: tuple[State, ...]
    tokens_read: Tensor
    segments_read: Tensor

    kind: ClassVar[str]
    layer_state: ClassVar[type[State]]

    @property
    def batch_size(self) -> int:
        """B."""
        return self.tokens_read.shape[0]

    def after(self, layers: Sequence[State], tokens: Tensor | int) -> Self:
        """The state after one more segment of `tokens` (an integer, or integers (B,)) left `layers`.

        A row without tokens in this segment keeps what it had.
        """
        if isinstance(tokens, int):
            return type(self)(tuple(layers), self.tokens_read + tokens, self.segments_read + 1)
        active = tokens > 0
        kept = tuple(_where(active, new, old) for new, old in zip(layers, self.layers))
        return type(self)(kept, self.tokens_read + tokens, self.segments_read + active)

    def repeat_batch(self, times: int) -> Self:
        """Every row `times` times, next to each other: many questions to the same memory, beams."""
        return self.map(lambda tensor: tensor.repeat_interleave(times, 0))

    def for_batch(self, rows: int) -> Self:
        """This state with `rows` rows, each of its own repeated equally often; `rows` must be a multiple of them."""
        return self if self.batch_size == rows else self.repeat_batch(rows // self.batch_size)

    @classmethod
    def stack(cls, states: Sequence[Self]) -> Self:
        """One batch of the rows of all `states`, in that order."""
        tensors = [state.tensors() for state in states]
        return cls.from_tensors({name: torch.cat([t[name] for t in tensors]) for name in tensors[0]})

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name; `from_tensors` inverts it."""
        named = {"tokens_read": self.tokens_read, "segments_read": self.segments_read}
        for index, layer in enumerate(self.layers):
            named |= {f"layers.{index}.{field.name}": getattr(layer, field.name) for field in fields(layer)}
        return named

    @classmethod
    def from_tensors(cls, named: dict[str, Tensor]) -> Self:
        """The state of these tensors."""
        count = len({name.split(".")[1] for name in named if name.startswith("layers.")})
        names = [field.name for field in fields(cls.layer_state)]
        layers = tuple(cls.layer_state(*(named[f"layers.{i}.{name}"] for name in names)) for i in range(count))
        return cls(layers, named["tokens_read"], named["segments_read"])

    def save(self, path: str | os.PathLike, model: str | None = None) -> None:
        """Write a safetensors file; `load` inverts it exactly. `model`: fingerprint of the model that it is of."""
        # Copies: an empty memory's tensors share their storage, which safetensors refuses.
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in self.tensors().items()}
        metadata = {"format": "pt", "tessera_memory": self.kind, CHECKSUM: str(tensor_checksum(tensors))}
        metadata |= {} if model is None else {MODEL: model}
        write_atomically(Path(path), lambda temporary: save_file(tensors, temporary, metadata=metadata))

    @classmethod
    def load(cls, path: str | os.PathLike, device: str | torch.device = "cpu") -> Self:
        """Read what `save` wrote. Raises `TesseraError` for any other file."""
        where = f"{cls.__name__}.load"
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                metadata = file.metadata() or {}
                kind = metadata.get("tessera_memory")
                expect(kind == cls.kind, where, "path", f"be a stored {cls.kind} memory", f"{kind or 'another'} file")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            # Files of earlier releases have no checksum; one whose name was damaged is no such file.
            unknown = metadata.keys() - {"format", "tessera_memory", CHECKSUM, MODEL}
            actual = str(tensor_checksum(tensors))
            is_intact = not unknown and metadata.get(CHECKSUM, actual) == actual
            expect(is_intact, where, "path", "be a memory as it was stored", f"{os.fspath(path)!r}, which was changed")
            return cls.from_tensors(tensors)
        except TesseraError:
            raise
        except Exception as error:
            raise TesseraError(f"{where}: path must be a stored memory; got {os.fspath(path)!r} ({error}).") from None

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


@dataclass(frozen=True)
class CarriedTokens(State):
    """States of memory tokens, carried to the next segment: `tokens` (B, M, hidden)."""

    tokens: Tensor


@dataclass(frozen=True)
class SegmentCache:
    """A text read up to somewhere inside a segment.

    Attributes:
        memory: after the last closed segment; None while none is closed and no memory was given. One that was given may
            have fewer rows than the text: each serves as many consecutive ones.
        attention: the base model's own cache of the open segment. A call that goes on from here extends it in place;
            `open_segment` gives it as it was. attention_length: its positions when this cache was made.
        length: ordinary tokens in the open segment. total: ordinary tokens read since this cache began.
        visible: booleans (B, length), or None when no position of the open segment is hidden.
        batch_size: number of rows.
    """

    memory: MemoryState | None
    attention: Any
    attention_length: int
    length: int
    total: int
    visible: Tensor | None
    batch_size: int
    is_compileable: ClassVar[bool] = False  # what transformers asks of a cache given to `generate`

    def open_segment(self) -> Any:
        """The base's cache of the open segment, as it was when this cache was made: one may go on from here twice.

        Raises:
            TesseraError: it was gone on from before, and this base's cache cannot be cut back.
        """
        attention = self.attention
        if attention is None or hasattr(attention, "select_batch"):  # nothing, or a value
            return attention
        if attention.get_seq_length() == self.attention_length:
            return attention
        again = _copied(attention)
        try:
            again.crop(self.attention_length - attention.get_seq_length())  # below 0: so many are taken away
        except (AttributeError, NotImplementedError, ValueError) as error:
            raise TesseraError(
                f"forward: past_key_values must not have been continued before, since the base's "
                f"{type(attention).__name__} cannot be cut back ({error}); got one that was. "
                "Continue copies of it: past_key_values.select_batch(rows)."
            ) from None
        return again

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens read (the name transformers asks for)."""
        return self.total

    def reorder(self, index: Tensor) -> "SegmentCache":
        """The cache of the rows `index`: what beam search asks for."""
        memory = None if self.memory is None else self.memory.for_batch(self.batch_size).select_batch(index)
        visible = None if self.visible is None else self.visible.index_select(0, index)
        attention = self.open_segment()
        if hasattr(attention, "select_batch"):
            attention = attention.select_batch(index)
        elif attention is not None:
            attention.reorder_cache(index)
        return replace(self, memory=memory, attention=attention, visible=visible, batch_size=len(index))

    def repeat_batch(self, times: int) -> "SegmentCache":
        """Every row `times` times, next to each other; the memory is not copied but shared."""
        alone = replace(self, memory=None)
        rows = torch.arange(self.batch_size).repeat_interleave(times)
        if self.visible is not None:
            rows = rows.to(self.visible.device)
        return replace(alone.select_batch(rows), memory=self.memory)

    def select_batch(self, index: Tensor) -> "SegmentCache":
        """The cache of the rows `index`, apart from this one: both may be gone on from."""
        return replace(self, attention=_copied(self.open_segment())).reorder(index)


@dataclass(frozen=True)
class GroupedCache:
    """Rows of different lengths: one cache for each set of rows (integers) that are equally far in their segment."""

    groups: tuple[tuple[Tensor, SegmentCache], ...]
    total: int
    is_compileable: ClassVar[bool] = False

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


def _copied(attention: Any) -> Any:
    """A base's cache that can be changed apart from `attention`; a value is its own copy."""
    if attention is None or hasattr(attention, "select_batch"):
        return attention
    tensors = [value for layer in getattr(attention, "layers", ()) for value in vars(layer).values()]
    # A tensor with gradients cannot be copied and need not be: a cache in training grows by concatenation.
    shared = {id(tensor): tensor for tensor in tensors if torch.is_tensor(tensor) and tensor.requires_grad}
    return copy.deepcopy(attention, shared)


def _where(active: Tensor, new: State, old: State) -> State:
    """Row by row the tensors of `new` where `active` (B,), else of `old`."""

    def choose(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(active.view(-1, *[1] * (a.dim() - 1)), a, b)

    return type(new)(*(choose(getattr(new, f.name), getattr(old, f.name)) for f in fields(new)))
