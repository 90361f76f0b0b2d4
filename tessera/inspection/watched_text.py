"""A text read as its model reads it: in one call, in blocks behind a state, or in segments around a memory."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from tessera.base.errors import expect
from tessera.models.causality import evaluating
from tessera.models.recurrence import MemoryState, SegmentedForCausalLM
from tessera.models.recurrence.segmented_input import segment_borders
from tessera.models.stack import StackForCausalLM
from tessera.models.stack_state import StackState

BLOCK = 2048  # tokens that a stack of memories reads in one call: logits of a block are in memory, not of a text


@dataclass(frozen=True)
class Part:
    """The tokens `start` to `end - 1` of a text, read in one call of the model behind `front` memory tokens."""

    start: int
    end: int
    front: int = 0

    def step(self, position: int) -> int:
        """Where the token at `position` of the text stands in this call."""
        return position - self.start + self.front

    def pairs(self, count: int, query_offset: int) -> Tensor:
        """The numbers (count,), as in `MemoryTrace`, of the pairs in a call whose first query is at `query_offset`."""
        steps = torch.arange(count) - query_offset - self.front
        return torch.where(steps < 0, steps, steps + self.start) if self.front else steps + self.start

    def column(self, pair: int, count: int, query_offset: int) -> int | None:
        """The column of the pair with this number; None where this call does not hold it."""
        columns = (self.pairs(count, query_offset) == pair).nonzero()
        return int(columns[0]) if len(columns) and pair < self.end else None


class Reading:
    """One text (1, T) and a model that reads it, part by part.

    Attributes:
        part: what is being read now. base: the model whose layers do it (inside ARMT, RMT and PRMT; else itself).
    Raises `TesseraError`: several texts, a memory that is not this model's, further inputs of a text read in parts.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        memory: StackState | MemoryState | None = None,
        **inputs: object,
    ) -> None:
        shape = tuple(input_ids.shape)
        expect(len(shape) == 2 and shape[0] == 1 and shape[1] > 0, "inspection", "input_ids", "be (1, T)", shape)
        self.model, self.input_ids, self.memory, self.inputs = model, input_ids, memory, inputs
        self.is_segmented = isinstance(model, SegmentedForCausalLM)
        self.base = model.base if self.is_segmented else model
        self.parts = self._parts()
        self.part = self.parts[0]
        in_parts = self.is_segmented or memory is not None
        expect(not (in_parts and inputs), "inspection", "inputs", "be left out for a text read in parts", list(inputs))
        expect("logits_to_keep" not in inputs, "inspection", "logits_to_keep", "be left out: losses need all", "it")

    @property
    def oldest(self) -> int:
        """The lowest number of a pair that can be seen now, memory tokens left out."""
        if self.is_segmented:
            return self.part.start
        return -self.memory.length if isinstance(self.memory, StackState) else 0

    @torch.no_grad()
    def losses(self, after_part: Callable[[Any], None] = lambda state: None) -> Tensor:
        """Read; nats of each token given those before it, (T,), NaN for the first. The model is in evaluation mode.

        `after_part` is called after each part with the state behind it.
        """
        losses, state = [torch.full((1,), torch.nan)], self.memory
        with evaluating(self.model):
            for part in self.parts:
                self.part = part
                logits, state = self._read(part, state)
                targets = self.input_ids[0, part.start + 1 : part.end + 1]
                losses.append(cross_entropy(logits[: len(targets)].float(), targets, reduction="none").cpu())
                after_part(state)
        return torch.cat(losses)

    def _read(self, part: Part, state):
        ids = self.input_ids[:, part.start : part.end]
        if self.is_segmented:
            output = self.model(ids, memory_state=state)
            return output.logits[0], output.memory_state
        is_last = part is self.parts[-1]
        inputs = self.inputs if state is None else {"past_key_values": state}
        output = self.model(input_ids=ids, use_cache=not is_last, **inputs)
        return output.logits[0], None if is_last else output.past_key_values

    def _parts(self) -> list[Part]:
        steps, config = self.input_ids.shape[1], self.model.config
        is_stack = isinstance(self.model, StackForCausalLM)
        kind = MemoryState if self.is_segmented else StackState if is_stack else type(None)
        is_state = self.memory is None or isinstance(self.memory, kind)
        needed = "be a state of this model, a v1, v2, ARMT, RMT or PRMT"
        expect(is_state, "inspection", "memory", needed, type(self.memory).__name__)
        if self.is_segmented:
            if isinstance(self.memory, MemoryState):
                self.memory.expect_fits(self.model.empty_memory(1), "inspection")
            front = self.model.segment_runner().front
            borders = segment_borders(steps, config.segment_size, config.segment_alignment)
            return [Part(start, end, front) for start, end in borders]
        if not is_stack or self.inputs:
            return [Part(0, steps)]
        return [Part(*border) for border in itertools.pairwise([*range(0, steps, BLOCK), steps])]
