"""Where a stack of memories stands in a sequence: its state, and which document each new step belongs to."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from tessera.base.errors import expect
from tessera.base.state import State, first_tensor
from tessera.memories.padded_rows import in_order, padding_first
from tessera.memories.pair_memory import PairMemoryState
from tessera.models.fingerprint import expect_same_model
from tessera.models.forking import PastValue
from tessera.models.forward_arguments import demand, expect_rows, new_steps


@dataclass(frozen=True)
class StackState(State, PastValue):
    """The states of all layers after `length` steps: what `past_key_values` is for these models."""

    layers: tuple[State, ...]
    length: int
    document: Tensor | None = None  # of the last step that is no padding (B, 1); None: nothing distinguishes the steps
    model: str | None = None  # its fingerprint; None: not known, as behind a compiled or exported program
    prefix: "Prefix | None" = None  # what every document begins behind
    tokens: Tensor | None = None  # steps of each row that are no padding (B, 1); None: all

    def fitting(self, where: str, model: str | None, hidden: Tensor) -> Self:
        """This state, on the device of `hidden` (B, T, hidden). Layers cast what has another dtype than theirs.

        Raises `TesseraError` where it is known to be the state of another model, or has another number of rows.
        """
        expect_same_model(where, "past_key_values", self.model, model)
        held = first_tensor(self.layers)
        held = hidden if held is None else held
        expect_rows(where, hidden.shape[0], held.shape[0])
        return (self if held.device == hidden.device else self.to(hidden.device)).recordable()

    def is_left_by(self, documents: Tensor) -> bool:
        """Whether some of `documents` (B, T) begin behind the prefix anew; a compiled program cannot look."""
        if self.prefix is None or self.document is None or torch.compiler.is_compiling():
            return False
        return bool(((documents >= 0) & (documents != self.document)).any())

    def before(self, where: str, layers: Iterable[Any], rows: Tensor, numbers: Tensor) -> "StackState":
        """In front of the documents `numbers` (n,) of `rows` (n,): this state, or the prefix where one begins.

        `layers` are those of the stack.
        """
        assert self.prefix is not None
        assert self.document is not None
        begun = self.prefix.select_batch(rows).state(where, layers, numbers[:, None])
        goes_on = numbers == self.document[rows, 0]
        places = torch.where(goes_on, rows, torch.arange(len(rows), device=rows.device) + len(self.document))
        return StackState.joined([self, begun]).select_batch(places)

    def to_legacy_cache(self) -> list[tuple[Tensor, Tensor]]:
        """The finished (keys, values) of each layer, of its memory that forgets none (the name PEFT asks for).

        With these a prefix or a Cartridge can begin.
        """
        memories = []
        for layer in self.layers:
            parts = layer if isinstance(layer, tuple) else ()
            stores = [memory for memory in parts if isinstance(memory, PairMemoryState)]
            expect(bool(stores), "StackState", "the model", "have memories of pairs", "matrices")
            memories.append((stores[-1].pairs.keys, stores[-1].pairs.values))
        return memories


@dataclass(frozen=True)
class Prefix(State, PastValue):
    """One (keys, values), each (B, H, N, width), for every layer: N pairs that were stored before a text begins.

    That is what PEFT's prefix tuning and its Cartridges learn.
    """

    layers: tuple[tuple[Tensor, Tensor], ...]

    @classmethod
    def of(cls, layers: Sequence[Tensor]) -> Self:
        """From PEFT's tensors (2, B, H, N, width)."""
        return cls(tuple((layer[0], layer[1]) for layer in layers))

    @property
    def length(self) -> int:
        """N."""
        return self.layers[0][0].shape[2]

    @property
    def document(self) -> Tensor:
        """0: that of a text behind it which has no number (B, 1)."""
        keys = self.layers[0][0]
        return torch.zeros(keys.shape[0], 1, dtype=torch.long, device=keys.device)

    def state(self, where: str, layers: Iterable[Any], document: Tensor | None = None) -> StackState:
        """What a stack of these layers goes on from, in front of each row's `document` (B, 1).

        Raises `TesseraError` where it has no pairs, or of other sizes.
        """
        advice = "Its memories are matrices, which hold no pairs."
        layers = list(layers)
        have_pairs = all(hasattr(layer, "begun_with") for layer in layers)
        expect(have_pairs, where, "past_key_values", "be left out", "pairs", advice)
        got, needed = len(self.layers), len(layers)
        expect(got == needed, where, "past_key_values", f"hold pairs for {needed} layers", got)
        document = self.document if document is None else document
        states = tuple(layer.begun_with(*pairs, document) for layer, pairs in zip(layers, self.layers))
        return StackState(states, self.length, document, prefix=self)


def read_documents(
    where: str,
    shape: tuple[int, int],
    past: StackState | Prefix | None,
    attention_mask: Tensor | None,
    document_ids: Tensor | None,
    position_ids: Tensor | None = None,
    cache_position: Tensor | None = None,
) -> Tensor | None:
    """Documents (B, T) of the steps read now, -1 for padding; None when nothing distinguishes them."""
    batch, steps = tuple(shape)
    is_state = past is None or isinstance(past, StackState | Prefix)
    advice = "Leave it out: these models keep memories, no keys and values that could be cropped."
    expect(is_state, where, "past_key_values", "be what an earlier call returned", type(past).__name__, advice)
    before = 0 if past is None else past.length
    last = None if past is None else past.document
    if last is not None:
        expect_rows(where, batch, last.shape[0])
    if cache_position is not None:
        expected = torch.arange(before, before + steps, device=cache_position.device)
        is_same = cache_position.shape == expected.shape and (cache_position == expected).all()
        is_same = torch.as_tensor(is_same, device=cache_position.device)
        demand(is_same, where, "cache_position", f"count on from {before}", cache_position.tolist)
    documents, real = None if last is None else last.expand(-1, steps), None
    if attention_mask is not None:
        real = new_steps(where, attention_mask, (batch, steps), before, tokens_read(past))
    if document_ids is not None:
        got = tuple(document_ids.shape)
        expect(got == (batch, steps), where, "document_ids", f"be {(batch, steps)}, one per step read now", got)
        documents = document_ids.long()  # of few bits they have no -1 for padding
        _expect_whole_documents(where, documents, real)
    elif position_ids is not None:
        documents = _documents_by_position(where, (batch, steps), position_ids, past, real)
    if real is None:
        return documents
    if documents is None and not torch.compiler.is_compiling():
        if past is not None and real.is_cuda:
            # Looking would cost every decoded token a wait.
            demand(real.all(), where, "attention_mask", "be one for new steps after steps without padding", str)
            return None
        if bool(real.all()):
            return None
    return torch.where(real, 0 if documents is None else documents, -1)


def _expect_whole_documents(where: str, documents: Tensor, real: Tensor | None) -> None:
    """Refuse `documents` (B, T) of which one is in several pieces; what `real` (B, T) leaves out separates none."""
    if real is not None:
        documents = torch.where(real, documents, -1)
        documents = in_order(documents, padding_first(documents))
    pieces, kinds = (
        ((numbers.diff(dim=1, prepend=torch.full_like(numbers[:, :1], -1)) != 0) & (numbers >= 0)).sum(1)
        for numbers in (documents, documents.sort(dim=1).values)
    )
    needed = "hold each document in one piece (attention_mask says what is padding inside of one)"
    demand((pieces == kinds).all(), where, "document_ids", needed, lambda: "a number that comes again behind others")


def _documents_by_position(
    where: str, shape: tuple[int, int], position_ids: Tensor, past: StackState | Prefix | None, real: Tensor | None
) -> Tensor | None:
    """A document begins where positions do not count on (padding has none), and behind a text at position 0."""
    got = tuple(position_ids.shape)
    expect(got in (shape, (1, shape[1])), where, "position_ids", f"be {shape} or {(1, shape[1])}", got)
    real = torch.ones(got, dtype=torch.bool, device=position_ids.device) if real is None else real
    latest = torch.where(real, torch.arange(shape[1], device=real.device), -1).cummax(1).values
    before = torch.cat([torch.full_like(latest[:, :1], -1), latest[:, :-1]], 1)
    positions = position_ids.expand(real.shape)
    counts_on = positions == positions.gather(1, before.clamp(min=0)) + 1
    first_begins = (positions == 0) & isinstance(past, StackState)
    begins = (real & torch.where(before < 0, first_begins, ~counts_on)).long()
    last = None if past is None else past.document
    if last is None and begins.device.type == "cpu" and not torch.compiler.is_compiling() and not bool(begins.any()):
        return None
    return begins.cumsum(1).expand(shape) + (0 if last is None else last)


def tokens_read(past: StackState | Prefix | None) -> int | Tensor:
    """Steps read so far that are no padding: of all rows alike, or (B, 1)."""
    if isinstance(past, StackState) and past.tokens is not None:
        return past.tokens
    return 0 if past is None else past.length


def last_document(past: StackState | Prefix | None, documents: Tensor | None) -> Tensor | None:
    """The document (B, 1) of the last step that is no padding; 0 where there is none yet."""
    if documents is None:
        return None if past is None else past.document
    steps = torch.arange(documents.shape[1], device=documents.device)
    latest = torch.where(documents >= 0, steps, -1).amax(1, keepdim=True)
    before = torch.zeros_like(latest) if past is None or past.document is None else past.document
    return torch.where(latest >= 0, documents.gather(1, latest.clamp(min=0)), before)
