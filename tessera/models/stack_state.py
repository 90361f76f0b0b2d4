"""Where a stack of memories stands in a sequence: its state, and which document each new step belongs to."""

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from tessera.base.errors import expect
from tessera.base.state import State, first_tensor
from tessera.models.fingerprint import difference
from tessera.models.forking import refuse_to_crop
from tessera.models.forward_arguments import demand


@dataclass(frozen=True)
class StackState(State):
    """The states of all layers after `length` steps: what `past_key_values` is for these models.

    Attributes:
        document: of the last step that is no padding (B, 1); None while nothing distinguishes the steps.
        model: the fingerprint of the model that made it (see `fingerprint`); None where it is not known, as behind a
            compiled or exported program.
    """

    layers: tuple[State, ...]
    length: int
    document: Tensor | None = None
    model: str | None = None
    is_compileable: ClassVar[bool] = False  # what transformers asks of a cache given to `generate`

    def fitting(self, where: str, model: str | None, hidden: Tensor) -> Self:
        """This state, on the device of `hidden` (B, T, hidden). Layers cast what has another dtype than theirs.

        Raises `TesseraError` where it is known to be the state of another model, or has another number of rows.
        """
        other_model = difference(self.model, model)
        needed, got = "be a state of this model", f"one of {other_model}"
        expect(other_model is None, where, "past_key_values", needed, got, "Read the text again.")
        held = first_tensor(self.layers)
        held = hidden if held is None else held
        _expect_rows(where, hidden.shape[0], held)
        return (self if held.device == hidden.device else self.to(hidden.device)).recordable()

    def to_legacy_cache(self) -> list[tuple[Tensor, Tensor]]:
        """The stored (keys, values) of each layer (the name PEFT asks for), to begin a prefix or a Cartridge with."""
        from tessera.models.prefix import stored_pairs

        return stored_pairs(self)

    crop = refuse_to_crop

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Steps read so far, padding included (the name transformers asks for)."""
        return self.length


def read_documents(
    where: str,
    shape: tuple[int, int],
    past: StackState | None,
    attention_mask: Tensor | None,
    document_ids: Tensor | None,
    position_ids: Tensor | None = None,
    cache_position: Tensor | None = None,
) -> Tensor | None:
    """Documents (B, T) of the steps read now, -1 for padding; None when nothing distinguishes them."""
    batch, steps = tuple(shape)
    is_state = past is None or isinstance(past, StackState)
    advice = "Leave it out: these models keep memories, no keys and values that could be cropped."
    expect(is_state, where, "past_key_values", "be what an earlier call returned", type(past).__name__, advice)
    before = 0 if past is None else past.length
    last = None if past is None else past.document
    if last is not None:
        _expect_rows(where, batch, last)
    if cache_position is not None:
        expected = torch.arange(before, before + steps, device=cache_position.device)
        is_same = cache_position.shape == expected.shape and (cache_position == expected).all()
        is_same = torch.as_tensor(is_same, device=cache_position.device)
        demand(is_same, where, "cache_position", f"count on from {before}", cache_position.tolist)
    documents, real = None if last is None else last.expand(-1, steps), None
    if attention_mask is not None:
        got, needed = tuple(attention_mask.shape), (batch, before + steps)
        requirement = f"be {needed} of zeros and ones, one per step since the start"
        expect(got == needed, where, "attention_mask", requirement, got)
        real = attention_mask[:, before:].bool()
    if document_ids is not None:
        got = tuple(document_ids.shape)
        expect(got == (batch, steps), where, "document_ids", f"be {(batch, steps)}, one per step read now", got)
        documents = document_ids
    elif position_ids is not None:
        documents = _documents_by_position(where, (batch, steps), position_ids, last, real)
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


def _expect_rows(where: str, rows: int, held: Tensor) -> None:
    expect(held.shape[0] == rows, where, "past_key_values", f"have {rows} rows, as the text", held.shape[0])


def _documents_by_position(
    where: str, shape: tuple[int, int], position_ids: Tensor, last: Tensor | None, real: Tensor | None
) -> Tensor | None:
    """A document begins where positions do not count on; the first step goes on with the `last` document.

    Padding has no position: `real` (B, T) says which steps are none.
    """
    got = tuple(position_ids.shape)
    expect(got in (shape, (1, shape[1])), where, "position_ids", f"be {shape} or {(1, shape[1])}", got)
    if real is None:
        begins = torch.zeros_like(position_ids)
        begins[:, 1:] = position_ids[:, 1:] != position_ids[:, :-1] + 1
    else:
        latest = torch.where(real, torch.arange(shape[1], device=real.device), -1).cummax(1).values
        before = torch.cat([torch.full_like(latest[:, :1], -1), latest[:, :-1]], 1)
        positions = position_ids.expand(shape)
        counts_on = positions == positions.gather(1, before.clamp(min=0)) + 1
        begins = (real & (before >= 0) & ~counts_on).long()
    if last is None and begins.device.type == "cpu" and not torch.compiler.is_compiling() and not bool(begins.any()):
        return None
    return begins.cumsum(1).expand(shape) + (0 if last is None else last)


def last_document(past: StackState | None, documents: Tensor | None) -> Tensor | None:
    """The document (B, 1) of the last step that is no padding; 0 where there is none yet."""
    if documents is None:
        return None if past is None else past.document
    steps = torch.arange(documents.shape[1], device=documents.device)
    latest = torch.where(documents >= 0, steps, -1).amax(1, keepdim=True)
    before = torch.zeros_like(latest) if past is None or past.document is None else past.document
    return torch.where(latest >= 0, documents.gather(1, latest.clamp(min=0)), before)
