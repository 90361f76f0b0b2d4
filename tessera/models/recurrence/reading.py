"""Reading a text: one loop over its segments."""

from dataclasses import replace
from typing import NamedTuple

import torch

from tessera.models.forking import fitting
from tessera.models.recurrence.cache import OpenSegment, SegmentCache, remembering
from tessera.models.recurrence.collector import Collector
from tessera.models.recurrence.segment_runner import Segment, SegmentResult, SegmentRunner
from tessera.models.recurrence.segmented_input import Cut, SegmentedInput, Span
from tessera.models.recurrence.state import MemoryState, RowMemories


class Reading(NamedTuple):
    """What a text left: the memory after the last closed segments, the open ones, the memory after every segment."""

    memory: MemoryState | None
    cache: SegmentCache | None
    states: tuple[MemoryState, ...]


def read(
    runner: SegmentRunner,
    text: SegmentedInput,
    collector: Collector,
    memory: MemoryState | None = None,
    cache: SegmentCache | None = None,
    *,
    use_cache: bool = False,
    extend_segment: bool = False,
    keep_states: bool = False,
) -> Reading:
    """Read `text` after `cache`, else after `memory`, segment by segment; `collector` takes what comes of its tokens.

    Rows that have ended are left out of the following segments. Every row gives what it gives alone.
    """
    config, open_groups, states = runner.config, [], []
    groups = () if cache is None else cache.groups
    memories = RowMemories(range(text.shape[0]), memory)
    if cache is not None:
        memories.parts = [(rows, segment.memory and segment.memory.recordable()) for rows, segment in groups]
    opened = dict(groups)
    cut = Cut(
        config.segment_size,
        config.segment_alignment,
        runner.joins_rows,
        use_cache,
        extend_segment,
        tuple((rows, segment.length) for rows, segment in groups),
    )
    for spans in text.segments(cut):
        for span in spans:  # as a rule one
            before = opened.pop(span.rows, None)
            segment, is_cut = _segment(text, span, before, collector), _is_cut(span, config.backprop_segments)
            asks = segment.needed != "nothing" or segment.hidden_states or segment.attentions
            with torch.set_grad_enabled(torch.is_grad_enabled() and (asks or not all(is_cut))):
                result = runner.run(segment, memories.take(span.rows))
            collector.add(span, result, segment.before)
            if not span.close:
                open_groups.append((span.rows, _open_segment(segment, result)))
            memories.put(span.rows, result.memory and result.memory.detach_rows(is_cut))
        if keep_states and any(span.close for span in spans):  # all of them in memory at once
            states.append(memories.all(runner.memory.empty))
    total = text.shape[1] + (0 if cache is None else cache.total)
    after = SegmentCache(tuple(open_groups), total, runner.model) if use_cache else None
    end = memories.all(runner.memory.empty)
    known = tuple(replace(state, model=runner.model) for state in states if state)
    return Reading(end and replace(end, model=runner.model), after, known)


def _segment(text: SegmentedInput, span: Span, before: OpenSegment | None, collector: Collector) -> Segment:
    embeddings, visible, read = text.embeddings(span), text.visible(span), 0
    if before is not None:
        read = before.length
        if visible is not None or before.visible is not None:
            ones = torch.ones(len(span.rows), 1, dtype=torch.bool, device=embeddings.device)
            old = ones.expand(-1, read) if before.visible is None else before.visible.to(ones.device)
            visible = torch.cat([old, ones.expand(-1, span.steps) if visible is None else visible], 1)
    return Segment(
        embeddings,
        read,
        span.close,
        None if before is None else fitting(before.again(), embeddings),
        visible,
        None if span.is_even else torch.tensor(span.lengths, device=embeddings.device),
        collector.needs(span),
        collector.hidden_states,
        collector.attentions is not None,
    )


def _open_segment(segment: Segment, result: SegmentResult) -> OpenSegment:
    length, rows = segment.before + segment.steps, segment.embeddings.shape[0]
    cache = remembering(result.cache)
    return OpenSegment(result.memory, cache, cache.get_seq_length(), length, segment.visible, rows)


def _is_cut(span: Span, backprop_segments: int | None) -> list[bool]:
    """Whether each row's gradients stop behind this segment: more than its last `backprop_segments` follow."""
    return [backprop_segments is not None and following >= backprop_segments for following in span.following]
