"""Reading a text segment by segment, as one batch or in groups of rows of equal length."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tessera.models.recurrence.cache import GroupedCache, SegmentCache
from tessera.models.recurrence.loss import ShiftedLoss
from tessera.models.recurrence.output import SegmentedOutput
from tessera.models.recurrence.read_out import Logits, plain_read_out
from tessera.models.recurrence.segments import segment_borders
from tessera.models.recurrence.state import MemoryState
from tessera.models.recurrence.text import Text

if TYPE_CHECKING:
    from tessera.models.recurrence.model import SegmentedForCausalLM


@dataclass(frozen=True)
class Piece:
    """A part of one segment, as one call of the base model reads it.

    Attributes:
        tokens: embeddings (B, n, hidden) of its ordinary tokens, n >= 0. before: how many of the segment were read.
        close: whether the segment ends here, so that its memory tokens follow. keep: whether the base's cache is
            wanted. cache: the base's cache of the part before. visible: booleans (B, before + n) or None. lengths: how
            many tokens of the segment exist in each row (B,), or None for all. result: what is wanted of the ordinary
            tokens: "logits", "hidden" (last hidden states), or "nothing".
    """

    tokens: Tensor
    before: int = 0
    close: bool = True
    keep: bool = False
    cache: object = None
    visible: Tensor | None = None
    lengths: Tensor | None = None
    result: str = "logits"


@dataclass(frozen=True)
class Wanted:
    """What of a reading is wanted: see the arguments of `SegmentedForCausalLM.forward`."""

    use_cache: bool = False
    extend_segment: bool = False
    logits_to_keep: int = 0
    skip_logits: bool = False
    segment_states: bool = False


def read_text(
    model: "SegmentedForCausalLM",
    text: Text,
    state: MemoryState | None,
    cache: SegmentCache | None,
    wanted: Wanted,
    loss: ShiftedLoss | None = None,
) -> SegmentedOutput:
    """Read `text` after `cache`, else after `state`; rows of different lengths only without a cache."""
    steps, total = text.shape[1], 0 if cache is None else cache.total
    state, cache = _make_room(model, state, cache, wanted)
    borders = _borders(model, steps, cache, wanted)
    first_kept = max(0, steps - wanted.logits_to_keep) if wanted.logits_to_keep else 0
    head, states = plain_read_out(model.base), []
    logits = Logits(steps - first_kept)
    for number, (start, end) in enumerate(borders):
        close = not (wanted.use_cache and end == steps)
        in_loss = loss is not None and loss.wants(start, end)
        kept = not wanted.skip_logits and end > first_kept
        result = "nothing" if not (kept or in_loss) else "logits" if head is None else "hidden"
        piece = _piece(text, start, end, cache, close, result)
        given, new_state, attention = model.read_piece(piece, state)
        scores = logits.add(given[:, max(first_kept - start, 0) :], head) if kept else None
        if in_loss and scores is not None and start >= first_kept:
            loss.add(scores, start)
        elif in_loss:
            loss.add(given, start, head)
        if close:
            cache, state = None, new_state
            if model.config.backprop_segments is not None and number < len(borders) - model.config.backprop_segments:
                state = state.detach()
            if wanted.segment_states:  # all of them in memory at once
                states.append(state)
        else:
            cache = SegmentCache(
                state, attention, piece.before + end - start, total + steps, piece.visible, text.shape[0]
            )
    return SegmentedOutput(
        logits=logits.value(),
        past_key_values=cache if wanted.use_cache else None,
        memory_state=state,
        segment_states=tuple(states) if wanted.segment_states else None,
    )


def read_in_groups(
    model: "SegmentedForCausalLM",
    text: Text,
    state: MemoryState | None,
    cache: GroupedCache | None,
    wanted: Wanted,
) -> SegmentedOutput:
    """Read rows that are not equally far, each set of equal ones as a batch of its own: what each row gives alone.

    Logits of missing positions are 0.
    """
    parts = text.groups() if cache is None else [(rows, text.select(rows)) for rows, _ in cache.groups]
    caches = [None] * len(parts) if cache is None else [group for _, group in cache.groups]
    outputs = [
        read_text(model, part, None if state is None else state.select_batch(rows), group, wanted)
        for (rows, part), group in zip(parts, caches)
    ]
    order = torch.cat([rows for rows, _ in parts]).argsort()
    memories = [output.memory_state for output in outputs]
    blank = all(memory is None for memory in memories)
    filled = [m or model.empty_memory(len(rows)) for m, (rows, _) in zip(memories, parts)]
    groups = tuple((rows, output.past_key_values) for (rows, _), output in zip(parts, outputs))
    total = text.shape[1] + (0 if cache is None else cache.total)
    return SegmentedOutput(
        logits=None if wanted.skip_logits else _assembled(text, parts, outputs, wanted.logits_to_keep or text.shape[1]),
        past_key_values=GroupedCache(groups, total) if wanted.use_cache else None,
        memory_state=None if blank else type(filled[0]).stack(filled).select_batch(order),
    )


def _assembled(text: Text, parts: list, outputs: list[SegmentedOutput], steps: int) -> Tensor:
    first = outputs[0].logits
    logits = first.new_zeros(text.shape[0], steps, first.shape[-1])
    for (rows, _), output in zip(parts, outputs):
        places = torch.arange(output.logits.shape[1], device=rows.device)
        logits = logits.index_put((rows[:, None], places[None]), output.logits)
    return logits


def _make_room(model, state, cache, wanted) -> tuple[MemoryState | None, SegmentCache | None]:
    """The memory and the open segment before new tokens; a segment that is full is closed first."""
    if cache is None:
        return state, None
    if wanted.extend_segment or cache.length < model.config.segment_size:
        return cache.memory, cache
    weight = model.get_input_embeddings().weight
    nothing = weight.new_zeros(cache.batch_size, 0, model.config.hidden_size)
    piece = Piece(nothing, cache.length, True, False, cache.attention, cache.visible, None, "nothing")
    return model.read_piece(piece, cache.memory)[1], None


def _borders(model, steps: int, cache: SegmentCache | None, wanted: Wanted) -> list[tuple[int, int]]:
    """The pieces of `steps` new tokens: what fits into the open segment, then whole segments."""
    config = model.config
    if cache is None:
        return segment_borders(steps, config.segment_size, config.segment_alignment)
    room = steps if wanted.extend_segment else min(config.segment_size - cache.length, steps)
    rest = segment_borders(steps - room, config.segment_size) if steps > room else []
    return [(0, room)] + [(start + room, end + room) for start, end in rest]


def _piece(text: Text, start: int, end: int, cache: SegmentCache | None, close: bool, result: str) -> Piece:
    visible = text.visible(start, end)
    before, attention = 0, None
    if cache is not None:
        before, attention = cache.length, cache.attention
        if visible is not None or cache.visible is not None:
            ones = torch.ones(text.shape[0], 1, dtype=torch.bool, device=text.tokens.device)
            old = ones.expand(-1, before) if cache.visible is None else cache.visible
            visible = torch.cat([old, ones.expand(-1, end - start) if visible is None else visible], 1)
    return Piece(
        text.embeddings(start, end), before, close, not close, attention, visible, text.lengths(start, end), result
    )
