"""Reading a text: one loop over its segments, each a call of the base model with a memory around its layers."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import initialization as init

from tessera.base.errors import TesseraError, expect
from tessera.models.fingerprint import calls_by_row
from tessera.models.forking import fitting
from tessera.models.recurrence.base_model import computes_twice, expect_as_many_calls, position_table, skips_padding
from tessera.models.recurrence.collector import Collector, Seen, SegmentResult
from tessera.models.recurrence.layer_hooks import LayerHooks
from tessera.models.recurrence.segmented_input import SegmentCut, SegmentedInput, Span
from tessera.models.recurrence.state import MemoryState, OpenSegment, RowMemories, SegmentCache, remembering

if TYPE_CHECKING:
    from tessera.models.recurrence.modeling import SegmentedForCausalLM


@dataclass(frozen=True)
class Segment:
    """A segment, or the part of one that a call of the base model reads."""

    embeddings: Tensor  # (B, n, hidden) of its ordinary tokens, n >= 0
    before: int = 0  # how many of the segment were read already
    close: bool = True  # whether the segment ends here, so that its memory tokens follow; else the cache is returned
    cache: object = None  # the base's, of the part before
    visible: Tensor | None = None  # booleans (B, before + n); None: all
    lengths: Tensor | None = None  # how many tokens of the segment each row has (B,); None: all
    needed: str = "logits"  # what of the ordinary tokens: "logits", "hidden" (the input of the head), or "nothing"
    hidden_states: bool = False  # whether these of each layer are returned
    attentions: bool = False

    @property
    def steps(self) -> int:
        """n."""
        return self.embeddings.shape[1]


class MemoryTokens(nn.Module):
    """`tokens` (M, hidden) from N(0, std^2), on the device of the token embeddings `like`; None: with their spread."""

    def __init__(self, count: int, like: Tensor, std: float | None = None):
        super().__init__()
        self.std = std
        self.tokens = nn.Parameter(torch.empty(count, like.shape[1], dtype=like.dtype, device=like.device))
        self.reset_parameters(like)

    def reset_parameters(self, like: Tensor) -> None:
        """Draw the tokens, with the spread of `like` if they have none of their own."""
        if not like.is_meta:
            init.normal_(self.tokens, 0.0, float(like.detach().float().std()) if self.std is None else self.std)

    def forward(self, batch: int) -> Tensor:
        """(B, M, hidden)."""
        return self.tokens.expand(batch, -1, -1)


class LayerModules(nn.Module):
    """A module for each layer of the base. Unlike a ModuleList it can be one of PEFT's `modules_to_save`."""

    def __init__(self, modules: Iterable[nn.Module]):
        super().__init__()
        for index, module in enumerate(modules):
            self.add_module(str(index), module)

    def in_order(self) -> list[Any]:
        """Those of the first layer, of the second, ...; those of the active adapter, where PEFT has copies."""
        return list(self.children())

    def __getitem__(self, index: int) -> Any:
        return self.in_order()[index]

    def __len__(self) -> int:
        return len(self.in_order())


class Reading(NamedTuple):
    """What a text left: the memory after the last closed segments, the open ones, the memory after every segment."""

    memory: MemoryState | None
    cache: SegmentCache | None
    states: tuple[MemoryState, ...]


class SegmentRunner:
    """Reads a text by calls of the base of `model`. It holds references alone and is made anew for each text."""

    def __init__(self, model: "SegmentedForCausalLM", fingerprint: str | None):
        self.model, self.base, self.config, self.fingerprint = model, model.base, model.config, fingerprint
        self.openings = model.new_openings()
        self.front = self.config.num_memory_tokens if model.at_front else 0
        self.first_position = model.first_position
        positions = self.front + self.config.segment_size + self.config.num_memory_tokens
        # Whether rows of different lengths can be one batch.
        self.joins_rows = self.first_position is not None and skips_padding(self.base, positions)

    def read(
        self,
        text: SegmentedInput,
        collector: Collector,
        memory: MemoryState | None = None,
        cache: SegmentCache | None = None,
        *,
        use_cache: bool = False,
        extend_segment: bool = False,
        keep_states: bool = False,
    ) -> Reading:
        """Read `text` after `cache`, else after `memory`, segment by segment; `collector` takes what comes of it.

        Rows that have ended are left out of the following segments. Every row gives what it gives alone.
        """
        config, most = self.config, self.config.backprop_segments
        groups = () if cache is None else cache.groups
        memories, open_groups, states = RowMemories(range(text.shape[0]), memory), [], []
        if cache is not None:
            memories.parts = [(rows, open_.memory and open_.memory.recordable()) for rows, open_ in groups]
        lengths = [(rows, config.segment_size if open_.is_full else open_.length) for rows, open_ in groups]
        spans_of_steps = text.segments(SegmentCut.of(config), self.joins_rows, lengths, use_cache, extend_segment)
        segments, calls = list(spans_of_steps), self._calls_by_row(text.shape[0])
        opened = {} if cache is None else {span.rows: cache.open_segment(span.rows) for span in segments[0]}
        names = calls[0]["adapter_names"] if calls else []
        expect_as_many_calls(self.base, sum(map(len, segments)))
        for spans in segments:
            for span in spans:  # as a rule one
                segment = self._segment(text, span, opened.pop(span.rows, None), collector)
                # Of a row, gradients stop behind a segment that at least `backprop_segments` follow.
                is_cut = [most is not None and following >= most for following in span.following]
                for arguments in calls:
                    arguments["adapter_names"] = [names[row] for row in span.rows]
                asks = segment.needed != "nothing" or segment.hidden_states or segment.attentions
                with torch.set_grad_enabled(torch.is_grad_enabled() and (asks or not all(is_cut))):
                    result = self.run(segment, memories.take(span.rows))
                collector.add(span, result, segment.before)
                if not span.close:
                    kept, length = remembering(result.cache), segment.before + segment.steps
                    sizes = (kept.get_seq_length(), length, segment.visible, len(span.rows))
                    open_groups.append((span.rows, OpenSegment(result.memory, kept, *sizes, span.is_full)))
                memories.put(span.rows, result.memory and result.memory.detach_rows(is_cut))
            if keep_states and any(span.close for span in spans):  # all of them in memory at once
                states.append(memories.all(self.model.unread))
        for arguments in calls:
            arguments["adapter_names"] = names
        total = text.shape[1] + (0 if cache is None else cache.total)
        read: int | Tensor = text.shape[1] if text.real is None else text.real.sum(1, keepdim=True)
        read = read if cache is None else read + cache.tokens_read
        tokens = read if isinstance(read, Tensor) else None
        after = SegmentCache(tuple(open_groups), total, self.fingerprint, tokens) if use_cache else None
        end = memories.all(self.model.unread)
        known = tuple(replace(state, model=self.fingerprint) for state in states if state)
        return Reading(end and replace(end, model=self.fingerprint), after, known)

    def _calls_by_row(self, rows: int) -> list[dict[str, Any]]:
        """See `calls_by_row`; refused where adapters have copies of the memory, of which all rows would read one."""
        calls, where = calls_by_row(self.model._fingerprint.adapted), type(self.model).__name__
        if calls:
            got = len(calls[0]["adapter_names"])
            expect(got == rows, where, "adapter_names", f"be one for each of {rows} rows", got)
            copied = any(hasattr(getattr(self.model, name), "modules_to_save") for name in self.model.memory_modules)
            advice = "Read the rows of each adapter by themselves, after set_adapter."
            needed = "be left out where adapters have memories of their own"
            expect(not copied, where, "adapter_names", needed, f"{got} names", advice)
        return calls

    def _segment(self, text: SegmentedInput, span: Span, before: OpenSegment | None, collector: Collector) -> Segment:
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

    def run(self, segment: Segment, state: MemoryState | None) -> SegmentResult:
        """Read `segment` after the memory `state` (None: nothing was read), whose rows may serve several each."""
        is_empty, rows = state is None, segment.embeddings.shape[0]
        has_rows = segment.close or not self.model.is_shared
        # Nothing reads or writes the zeros of an unread memory in the midst of a segment.
        state = self.model.unread(rows if has_rows else 0) if state is None else state.to(segment.embeddings.device)
        if has_rows:
            state = state.for_batch(rows)
        front = self.front if segment.cache is None else 0
        back = self.config.num_memory_tokens if segment.close else 0
        hooks = self.model.hooks(state, is_empty, front, back, self.openings)
        if back and segment.needed == "nothing" and not segment.hidden_states and not torch.is_grad_enabled():
            hooks.needed = back  # with gradients, a checkpointed layer is computed again without its hooks
        if segment.hidden_states:
            hooks.inputs = []
        tokens = self.model.memory_embeddings(state).to(segment.embeddings) if front or back else None
        parts = [tokens if front else None, segment.embeddings, tokens if back else None]
        output = self.call_base(torch.cat([part for part in parts if part is not None], 1), segment, hooks)
        ordinary, seen = slice(front, front + segment.steps), {"balance": output.get("aux_loss")}
        before_head = hooks.last_hidden
        last = None if before_head is None else before_head[:, ordinary]
        needed = last if segment.needed == "hidden" else None
        if segment.needed == "logits":
            needed = output.logits[:, ordinary]
        if hooks.inputs is not None:
            assert last is not None, "the call is done"
            assert before_head is not None
            end = Seen(last) if segment.needed == "hidden" else Seen(before_head, (ordinary, slice(None)))
            seen["hidden_states"] = (*map(Seen, hooks.inputs), end)
        if segment.attentions:
            seen["attentions"] = self._attentions(output, segment, ordinary)
        if segment.close:
            read = segment.before + segment.steps if segment.lengths is None else segment.lengths
            memory = state.after(self.model.next_layers(hooks, state), read)
            return SegmentResult(needed, memory, **seen)
        if output.get("past_key_values") is None:
            base = type(self.base).__name__
            message = f"use_cache=True needs a cache of the base, and this {base} gave none"
            if computes_twice(self.base):
                message += ": in training with gradient checkpointing it keeps none. Turn one of the two off"
            raise TesseraError(f"forward: {message}.")
        return SegmentResult(needed, None if is_empty else state, output.past_key_values, **seen)

    def _attentions(self, output: Any, segment: Segment, ordinary: slice) -> tuple[Seen, ...]:
        """What the base says of attention, without memory tokens."""
        first, seen = self.front, segment.before + segment.steps
        weights: tuple[Any, ...] = output.get("attentions") or (None,)
        total = first + seen + (self.config.num_memory_tokens if segment.close else 0)
        is_attention = all(layer is not None and layer.shape[-1] == total for layer in weights)
        advice = 'Load it with attn_implementation="eager"; weights of memories are in tessera.inspection.'
        requirement = f"be False where {type(self.base).__name__} gives none"
        expect(is_attention, "forward", "output_attentions", requirement, True, advice)
        return tuple(Seen(layer, (ordinary, slice(first, first + seen))) for layer in weights)

    def call_base(self, embeddings: Tensor, segment: Segment, hooks: LayerHooks) -> Any:
        """The base model's output for `embeddings` (B, front + n + back, hidden) of `segment` and its memory tokens."""
        arguments = {"inputs_embeds": embeddings, "use_cache": not segment.close, "return_dict": True}
        if segment.cache is not None:
            arguments["past_key_values"] = segment.cache
        if (visible := self._key_mask(segment, hooks.back)) is not None:
            arguments["attention_mask"] = visible
        if segment.attentions:
            arguments["output_attentions"] = True
        if self.first_position is not None:
            arguments["position_ids"] = self.first_position + self._positions(segment, hooks.front, hooks.back)
        with hooks.active():
            return (self.base if segment.needed == "logits" else self.base.base_model)(**arguments)

    def _key_mask(self, segment: Segment, back: int) -> Tensor | None:
        """Which keys (B, front + before + n + back) are visible, memory tokens always; None for all."""
        # Without a mask, transformers takes a jump of the positions for the start of another document.
        if segment.visible is None and not self.config.own_memory_positions:
            return None
        ones = torch.ones(len(segment.embeddings), 1, dtype=torch.bool, device=segment.embeddings.device)
        visible = ones.expand(-1, segment.before + segment.steps) if segment.visible is None else segment.visible
        return torch.cat([ones.expand(-1, self.front), visible, ones.expand(-1, back)], 1).long()

    def _positions(self, segment: Segment, front: int, back: int) -> Tensor:
        """Positions (1 or B, T): consecutive, memory tokens right after the last token that exists, or in own rows."""
        device = segment.embeddings.device
        first = (0 if front else self.front) + segment.before
        count = front + segment.steps
        ordinary = torch.arange(first, first + count, device=device)[None]
        if not back:
            return ordinary
        if self.config.own_memory_positions:
            table = position_table(self.base)
            assert table is not None, "widen_positions asks for it"
            rows = table.num_embeddings
            return torch.cat([ordinary, torch.arange(rows - back, rows, device=device)[None]], 1)
        after = torch.arange(back, device=device)[None]
        if segment.lengths is None:
            return torch.cat([ordinary, after + first + count], 1)
        after = after + self.front + segment.lengths[:, None]
        return torch.cat([ordinary.expand(len(after), -1), after], 1)
