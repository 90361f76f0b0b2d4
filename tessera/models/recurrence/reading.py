"""Reading a text segment by segment, as one batch or in groups of rows of equal length."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers.utils import ModelOutput

from tessera.base.errors import expect
from tessera.models.recurrence.lm_head import LogitsWriter, ShiftedLoss, plain_lm_head
from tessera.models.recurrence.segment_runner import Segment, SegmentRunner
from tessera.models.recurrence.segmented_input import SegmentedInput, segment_borders
from tessera.models.recurrence.state import GroupedCache, MemoryState, SegmentCache


@dataclass
class SegmentedOutput(ModelOutput):
    """Output of `SegmentedForCausalLM.forward`.

    Attributes:
        loss: mean cross entropy in nats, when labels were given; in training with `penalty`.
        logits: (B, T, vocabulary) of the ordinary tokens, memory tokens left out.
        past_key_values: a `SegmentCache`, when `use_cache`: the memory and the open segment.
        memory_state: the memory after the last closed segment; while none is closed, the one that was given.
        segment_states: the memory after every segment, when `output_segment_states`.
        hidden_states: the base's, of the ordinary tokens, when `output_hidden_states`.
        penalty: what the model charges beside the cross entropy, as it stands in the loss (`ARMTConfig.gate_penalty`).
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    past_key_values: SegmentCache | GroupedCache | None = None
    memory_state: MemoryState | None = None
    segment_states: tuple[MemoryState, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    penalty: Tensor | None = None


@dataclass(frozen=True)
class ReadOptions:
    """What to compute of a reading: see the arguments of `SegmentedForCausalLM.forward`."""

    use_cache: bool = False
    extend_segment: bool = False
    logits_to_keep: int = 0
    skip_logits: bool = False
    segment_states: bool = False
    hidden_states: bool = False


def read(
    runner: SegmentRunner,
    text: SegmentedInput,
    state: MemoryState | None,
    cache: SegmentCache | GroupedCache | None,
    options: ReadOptions,
    loss: ShiftedLoss | None,
) -> SegmentedOutput:
    """Read any `text` after `cache`, else after `state`, with the padding where the caller had it; fills `loss`."""
    needs_groups = options.use_cache or not runner.takes_positions or runner.config.segment_alignment != "left"
    if isinstance(cache, GroupedCache):
        return _read_groups(runner, text, state, cache, options, loss)
    if text.uneven and needs_groups:
        assert cache is None, "a text that goes on in a segment has no padding"
        return _read_groups(runner, text, state, None, options, loss)
    if not text.uneven:
        return read_text(runner, text, state, cache, options, loss)
    output = read_text(runner, text, state, cache, replace(options, logits_to_keep=0), loss)
    if output.logits is not None:
        output.logits = text.restore(output.logits)[:, -options.logits_to_keep :]
    if output.hidden_states is not None:
        output.hidden_states = tuple(text.restore(hidden) for hidden in output.hidden_states)
    return output


def read_text(
    runner: SegmentRunner,
    text: SegmentedInput,
    state: MemoryState | None,
    cache: SegmentCache | None,
    options: ReadOptions,
    loss: ShiftedLoss | None = None,
) -> SegmentedOutput:
    """Read `text` after `cache`, else after `state`; rows of different lengths only without a cache."""
    steps, total = text.shape[1], 0 if cache is None else cache.total
    state, cache = _make_room(runner, state, cache, options)
    borders = _borders(runner.config, steps, cache, options)
    first_kept = max(0, steps - options.logits_to_keep) if options.logits_to_keep else 0
    head, hidden_states = plain_lm_head(runner.base), []
    states: list[MemoryState] = []
    logits = LogitsWriter(steps - first_kept)
    truncated = len(borders) - (runner.config.backprop_segments or len(borders))
    for number, (start, end) in enumerate(borders):
        close = not (options.use_cache and end == steps)
        in_loss = loss is not None and loss.counts(start, end)
        is_kept = not options.skip_logits and end > first_kept
        result = "nothing" if not (is_kept or in_loss) else "logits" if head is None else "hidden"
        asks = result != "nothing" or options.hidden_states
        segment = _segment(text, start, end, cache, close, result, options.hidden_states)
        with torch.set_grad_enabled(torch.is_grad_enabled() and (number >= truncated or asks)):
            output, new_state, attention, hidden = runner.run(segment, state)
        hidden_states.append(hidden)
        scores = None
        if is_kept:
            assert output is not None
            scores = logits.add(output[:, max(first_kept - start, 0) :], head)
        if loss is not None and in_loss:
            if scores is not None and start >= first_kept:
                loss.add(scores, start)
            else:
                assert output is not None
                loss.add(output, start, head)
        if close:
            assert new_state is not None, "a closed segment leaves a memory"
            cache, state = None, new_state.detach() if number < truncated else new_state
            if options.segment_states:  # all of them in memory at once
                states.append(state)
        else:
            length = segment.before + end - start
            positions = attention.get_seq_length()
            cache = SegmentCache(state, attention, positions, length, total + steps, segment.visible, text.shape[0])
    return SegmentedOutput(
        logits=logits.value(),
        past_key_values=cache if options.use_cache else None,
        memory_state=state,
        segment_states=tuple(states) if options.segment_states else None,
        hidden_states=tuple(torch.cat(layer, 1) for layer in zip(*hidden_states)) if options.hidden_states else None,
    )


def _read_groups(
    runner: SegmentRunner,
    text: SegmentedInput,
    state: MemoryState | None,
    cache: GroupedCache | None,
    options: ReadOptions,
    loss: ShiftedLoss | None,
) -> SegmentedOutput:
    """Rows that are not equally far: logits (all of them, where padding must be put back first) and the loss."""
    for name in ("segment_states", "hidden_states"):
        is_off = not getattr(options, name)
        expect(is_off, "forward", f"output_{name}", "be False for rows of unequal length read apart", True)
    inner = options
    if cache is None:
        inner = replace(options, logits_to_keep=0, skip_logits=options.skip_logits and loss is None)
    output = _read_each_group(runner, text, state, cache, inner)
    if loss is not None:
        assert output.logits is not None
        loss.add(output.logits, 0)
    if options.skip_logits:
        output.logits = None
    elif cache is None:
        assert output.logits is not None
        output.logits = text.restore(output.logits)[:, -options.logits_to_keep :]
    return output


def _read_each_group(
    runner: SegmentRunner,
    text: SegmentedInput,
    state: MemoryState | None,
    cache: GroupedCache | None,
    options: ReadOptions,
) -> SegmentedOutput:
    """Read rows that are not equally far, each set of equal ones as a batch of its own: what each row gives alone.

    Logits of missing positions are 0.
    """
    parts = text.groups() if cache is None else [(rows, text.select(rows)) for rows, _ in cache.groups]
    caches = [None] * len(parts) if cache is None else [group for _, group in cache.groups]
    outputs = [
        read_text(
            runner, part, None if state is None else state.for_batch(text.shape[0]).select_batch(rows), group, options
        )
        for (rows, part), group in zip(parts, caches)
    ]
    order = torch.cat([rows for rows, _ in parts]).argsort()
    is_empty = all(output.memory_state is None for output in outputs)
    memories = [one.memory_state or runner.memory.empty(len(rows)) for one, (rows, _) in zip(outputs, parts)]
    groups = tuple(
        (rows, one.past_key_values)
        for (rows, _), one in zip(parts, outputs)
        if isinstance(one.past_key_values, SegmentCache)
    )
    total = text.shape[1] + (0 if cache is None else cache.total)
    kept = options.logits_to_keep or text.shape[1]
    return SegmentedOutput(
        logits=None if options.skip_logits else _assembled(text, parts, outputs, kept),
        past_key_values=GroupedCache(groups, total) if options.use_cache else None,
        memory_state=None if is_empty else type(memories[0]).stack(memories).select_batch(order),
    )


def _assembled(text: SegmentedInput, parts: list, outputs: list[SegmentedOutput], steps: int) -> Tensor:
    first = outputs[0].logits
    assert first is not None
    logits = first.new_zeros(text.shape[0], steps, first.shape[-1])
    for (rows, _), output in zip(parts, outputs):
        assert output.logits is not None
        places = torch.arange(output.logits.shape[1], device=rows.device)
        logits = logits.index_put((rows[:, None], places[None]), output.logits)
    return logits


def _make_room(runner, state, cache, options) -> tuple[MemoryState | None, SegmentCache | None]:
    """The memory and the open segment before new tokens; a segment that is full is closed first."""
    if cache is None:
        return state, None
    if options.extend_segment or cache.length < runner.config.segment_size:
        return cache.memory, cache
    weight = runner.base.get_input_embeddings().weight
    nothing = weight.new_zeros(cache.batch_size, 0, runner.config.hidden_size)
    segment = Segment(nothing, cache.length, True, False, cache.open_segment(), cache.visible, None, "nothing")
    return runner.run(segment, cache.memory).memory, None


def _borders(config, steps: int, cache: SegmentCache | None, options: ReadOptions) -> list[tuple[int, int]]:
    """The parts of `steps` new tokens: what fits into the open segment, then whole segments."""
    if cache is None:
        return segment_borders(steps, config.segment_size, config.segment_alignment)
    room = steps if options.extend_segment else min(config.segment_size - cache.length, steps)
    rest = segment_borders(steps - room, config.segment_size) if steps > room else []
    return [(0, room)] + [(start + room, end + room) for start, end in rest]


def _segment(
    text: SegmentedInput,
    start: int,
    end: int,
    cache: SegmentCache | None,
    close: bool,
    result: str,
    hidden_states: bool,
) -> Segment:
    visible = text.visible(start, end)
    before, attention = 0, None
    if cache is not None:
        before, attention = cache.length, cache.open_segment()
        if visible is not None or cache.visible is not None:
            ones = torch.ones(text.shape[0], 1, dtype=torch.bool, device=text.tokens.device)
            old = ones.expand(-1, before) if cache.visible is None else cache.visible
            visible = torch.cat([old, ones.expand(-1, end - start) if visible is None else visible], 1)
    embeddings, lengths = text.embeddings(start, end), text.lengths(start, end)
    return Segment(embeddings, before, close, not close, attention, visible, lengths, result, hidden_states)
