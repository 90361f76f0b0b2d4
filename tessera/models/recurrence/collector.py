"""What a reading gives of its ordinary tokens, collected segment by segment: logits, loss, hidden states."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from tessera.base.errors import expect
from tessera.models.lazy_logits import LazyLogits, LooksUpLogits
from tessera.models.recurrence.segment_loss import SegmentLoss
from tessera.models.recurrence.segmented_input import SegmentedInput, Span, scattered
from tessera.models.recurrence.state import MemoryState, SegmentCache


@dataclass
class SegmentedOutput(LooksUpLogits):
    """Output of `SegmentedForCausalLM.forward`.

    Attributes:
        loss: mean cross entropy in nats, when labels were given; in training with `penalty`.
        logits: (B, T, vocabulary) of the ordinary tokens, memory tokens left out; at padding anything.
        past_key_values: when `use_cache`: the memory and the open segment.
        memory_state: the memory after the last closed segment; while none is closed, the one that was given.
        segment_states: the memory after every segment, when `output_segment_states`.
        hidden_states: of the ordinary tokens, when `output_hidden_states`.
        attentions: (B, H, T, tokens before + T) of each layer, when `output_attentions`; memory tokens left out.
        penalty: what the model charges beside the cross entropy, as it stands in the loss (`ARMTConfig.gate_penalty`).
    """

    loss: Tensor | None = None
    logits: Tensor | LazyLogits | None = None
    past_key_values: SegmentCache | None = None
    memory_state: MemoryState | None = None
    segment_states: tuple[MemoryState, ...] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    penalty: Tensor | None = None


class Seen(NamedTuple):
    """`source[..., *parts]`, which is returned, of `source`, which the model goes on with."""

    source: Tensor
    parts: tuple[slice, ...] = ()

    def of(self, tensor: Tensor) -> Tensor:
        """This part of a tensor of the source's shape."""
        index: Any = (..., *self.parts)
        return tensor[index]


class SegmentResult(NamedTuple):
    """What a segment's call gave: its `Segment.needed`, the memory after it, the base's cache (while it is open).

    `hidden_states`: before each layer, and the input of the head. `attentions`: (B, H, n, before + n) of each layer.
    `balance`: the balancing loss of a base with experts, where its configuration asks for it.
    """

    output: Tensor | None
    memory: MemoryState | None
    cache: Any = None
    hidden_states: tuple[Seen, ...] = ()
    attentions: tuple[Seen, ...] = ()
    balance: Tensor | None = None


class Collector:
    """Is told of every span of `text` by `add`, and says before what of it is needed."""

    def __init__(
        self,
        text: SegmentedInput,
        head: nn.Linear | None,  # see `plain_lm_head`; None: the base makes its logits
        loss: SegmentLoss | None = None,
        logits_to_keep: int | None = None,  # the last so many positions, 0 for all, None for none
        hidden_states: bool = False,  # whether those are collected too
        attentions: bool = False,
        before: int = 0,  # how many tokens were read before this text: columns of the attentions
        keeps_head_input: bool = False,  # whether what the head makes logits of is kept, of the same positions
    ):
        steps = text.shape[1]
        self.text, self.head, self.loss, self.hidden_states = text, head, loss, hidden_states
        kept = 0 if logits_to_keep is None else min(logits_to_keep or steps, steps)
        self.first_kept = steps - kept
        behind = steps - max(map(sum, zip(text.starts, text.lengths)))  # padding that all rows have at their end
        needed = f"be more than the {behind} positions of padding behind every text"
        expect(kept == 0 or kept > behind, "forward", "logits_to_keep", needed, kept, "Pad on the left.")
        self.logits = StepWriter(text, 0 if keeps_head_input else kept)
        self.hidden: list[tuple[StepWriter, Followed]] = []
        self.before = before
        self.attentions: list[tuple[Tensor, Followed]] | None = [] if attentions else None
        self.inputs = StepWriter(text, kept) if keeps_head_input else None  # of the head; None: not kept, or not whole

    def needs(self, span: Span) -> str:
        """What the base must give: "logits", "hidden" (the input of its head), or "nothing"."""
        in_loss = self.loss is not None and self.loss.counts(span)
        if self.loss is not None and self.loss.balancing:
            return "logits"
        if not (in_loss or self._keeps(span)):
            return "nothing"
        return "logits" if self.head is None else "hidden"

    def add(self, span: Span, result: SegmentResult, before: int) -> None:
        """Take what a call of the base gave for a span in whose segment `before` tokens were read already."""
        if self.attentions is not None:
            self._add_attentions(span, result.attentions, before)
        if self.hidden_states:
            steps = self.text.shape[1]
            self.hidden = self.hidden or [(StepWriter(self.text, steps), Followed()) for _ in result.hidden_states]
            is_text, add = span.is_all and span.steps == steps, partial(_add_steps, span)
            for (writer, followed), seen in zip(self.hidden, result.hidden_states):
                is_itself = is_text and not seen.parts  # what follows is computed from the very tensor
                writer.add(seen.source if is_itself else followed.part(seen, add), span)
        output = result.output
        if self.inputs is not None and span.end > self.first_kept:
            if output is None or self.head is None:
                self.inputs = None
            else:
                self.inputs.add(output, span)
        if output is None:
            return
        if self.loss is not None and self.loss.balancing and result.balance is not None:
            self.loss.add_balance(result.balance, span)
        logits = self.logits.add(output, span, self.head) if self._keeps(span) else None
        if self.loss is not None and self.loss.counts(span):
            if logits is not None and logits.shape[1] == output.shape[1]:
                self.loss.add(logits, span)
            else:
                self.loss.add(output, span, self.head)

    def hidden_states_of_layers(self) -> tuple[Tensor, ...] | None:
        """Those before each layer, and the input of the head; None where they are not collected."""
        if not self.hidden_states:
            return None
        pairs = [(writer.value(), followed) for writer, followed in self.hidden]
        return tuple(followed.whole(states) for states, followed in pairs if states is not None)

    def attentions_of_layers(self) -> tuple[Tensor, ...] | None:
        """(B, H, T, before the text + T) of each layer; None where they are not collected."""
        if self.attentions is None:
            return None
        return tuple(followed.whole(weights) for weights, followed in self.attentions)

    def _add_attentions(self, span: Span, layers: tuple[Seen, ...], before: int) -> None:
        """Weights (B, H, T, before the text + T) of each layer: blocks on the diagonal, elsewhere 0."""
        assert self.attentions is not None
        batch, steps = self.text.shape
        add = partial(_add_blocks, span, self.before, before)
        for layer, seen in enumerate(layers):
            if len(self.attentions) == layer:
                shape = (batch, seen.source.shape[1], steps, self.before + steps)
                self.attentions.append((seen.source.new_zeros(shape), Followed()))
            weights, followed = self.attentions[layer]
            add(weights, followed.part(seen, add))

    def _keeps(self, span: Span) -> bool:
        return self.logits.steps > 0 and span.end > self.first_kept


def _add_steps(span: Span, states: Tensor, values: Tensor) -> None:
    source, targets = (index.to(values.device) for index in scattered(span, 0, states.shape[1]))
    states.view(-1, states.shape[-1]).index_add_(0, targets, values.flatten(0, 1).index_select(0, source))


def _add_blocks(span: Span, read: int, before: int, weights: Tensor, values: Tensor) -> None:
    """`read`: columns before the text; `before`: how many tokens of the segment were read already."""
    for row_values, row, start, length in zip(values, span.rows, span.starts, span.lengths):
        first = read + start - before
        block = row_values[:, :length, : before + length]
        weights[row, :, start : start + length, first : first + before + length] += block


class StepWriter:
    """Collects values (B, steps, width) of the last `steps` positions of a text; 0 at padding.

    Without gradients they have their final place from the start: logits of a long text are gigabytes, and a second
    copy of them costs more time than the products.
    """

    def __init__(self, text: SegmentedInput, steps: int):
        self.text, self.steps, self.first = text, steps, text.shape[1] - steps
        self.buffer: Tensor | None = None
        self.columns: list[tuple[int, Tensor]] = []  # of all rows, from a position on
        self.entries: list[tuple[Tensor, Tensor]] = []  # places in flat (B, steps), and what belongs there

    def add(self, output: Tensor, span: Span, head: nn.Linear | None = None) -> Tensor:
        """Take values (b, n, width) of a span: `output` itself, or with `head` what it makes of `output`.

        Returns those of the whole span where they were made, else those that are kept.
        """
        if not span.is_all:
            values = output if head is None else linear(output, head.weight)
            self._scatter(values, span)
            return values
        if span.starts[0] < self.first:
            output = output[:, self.first - span.starts[0] :]
        start = max(span.starts[0] - self.first, 0)
        if torch.is_grad_enabled() or output.shape[1] == self.steps:
            values = output if head is None else linear(output, head.weight)
            self.columns.append((start, values))
            return values
        # PEFT's tied copies of a head say their sizes the wrong way round in `out_features`.
        room = self._room(output, output.shape[-1] if head is None else len(head.weight))
        room = room[:, start : start + output.shape[1]]
        if head is None:
            return room.copy_(output)
        same = output.dtype == head.weight.dtype and not torch.is_autocast_enabled(output.device.type)
        if same and len(output) == 1:
            torch.mm(output[0], head.weight.T, out=room[0])
            return room
        return room.copy_(linear(output, head.weight))

    def value(self) -> Tensor | None:
        """All of them."""
        if not self.entries:
            if not self.columns:
                return self.buffer
            joined = [values for _, values in self.columns]
            rows = joined[0] if len(joined) == 1 else torch.cat(joined, 1)
            front = self.columns[0][0]  # padding that all rows have before their text, and behind it
            behind = self.steps - front - rows.shape[1]
            return pad(rows, (0, 0, front, behind)) if front or behind else rows
        # All at once: FSDP hooks the result, and PyTorch crashes where that is a view with some written into it later.
        batch, entries = self.text.shape[0], list(self.entries)
        for start, values in self.columns:
            steps = torch.arange(start, start + values.shape[1], device=values.device)
            firsts = self.steps * torch.arange(batch, device=values.device)[:, None]
            entries.append(((firsts + steps).flatten(), values.flatten(0, 1)))
        places, values = map(torch.cat, zip(*entries))
        flat = values.new_zeros(batch * self.steps, values.shape[-1]).index_copy(0, places, values)
        return flat.unflatten(0, (batch, self.steps))

    def _room(self, output: Tensor, width: int) -> Tensor:
        if self.buffer is None:
            make = output.new_zeros if self.text.has_padding else output.new_empty
            self.buffer = make(self.text.shape[0], self.steps, width)
        return self.buffer

    def _scatter(self, values: Tensor, span: Span) -> None:
        source, places = (index.to(values.device) for index in scattered(span, self.first, self.text.shape[1]))
        chosen = values.flatten(0, 1).index_select(0, source)
        if torch.is_grad_enabled():
            self.entries.append((places, chosen))
        else:
            room = self._room(values, values.shape[-1])  # of float32 where autocast's logits of whole spans were first
            room.flatten(0, 1).index_copy_(0, places, chosen.to(room.dtype))


class Followed:
    """The parts of one whole tensor, whose gradient somebody may ask for by its `retain_grad`.

    What follows in the model was computed from the tensors of the segments, not from the whole: their gradients are
    added.
    """

    def __init__(self) -> None:
        self.parts: list[tuple[Seen, Tensor, Callable[[Tensor, Tensor], None]]] = []

    def part(self, seen: Seen, add: Callable[[Tensor, Tensor], None]) -> Tensor:
        """The part itself; `add(whole, values)` adds values of its shape to its place in the whole."""
        part = seen.of(seen.source)
        if part.requires_grad and not torch.compiler.is_compiling():
            self.parts.append((seen, part, add))
        return part

    def whole(self, whole: Tensor) -> Tensor:
        """`whole`, whose retained gradient will have what reaches its parts through the model."""
        whole = whole.view_as(whole) if any(whole is slice_of_whole for _, slice_of_whole, _ in self.parts) else whole
        for seen, slice_of_whole, add in self.parts:
            direct: dict[str, Tensor] = {}  # what reaches the part through the whole, which autograd adds by itself
            slice_of_whole.register_hook(partial(direct.__setitem__, "gradient"))
            seen.source.register_hook(partial(_pass_on, weakref.ref(whole), direct, seen, add))
        return whole


def _pass_on(
    reference: Callable[[], Tensor | None],
    direct: dict[str, Tensor],
    seen: Seen,
    add: Callable[[Tensor, Tensor], None],
    gradient: Tensor,
) -> None:
    gradient, through_whole, whole = seen.of(gradient), direct.pop("gradient", None), reference()
    if whole is not None and whole.retains_grad:
        whole.grad = torch.zeros_like(whole) if whole.grad is None else whole.grad
        add(whole.grad, gradient if through_whole is None else gradient - through_whole)
