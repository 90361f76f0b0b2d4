"""A text in a model's tokens, what each shows of it, and how the model reads it: in one call, in blocks behind a state,
or in segments around a memory.
"""

import codecs
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tessera.base.errors import TesseraError, expect
from tessera.data.encoding import PIECE, token_stream
from tessera.data.text_files import text_of_file
from tessera.data.tokenizers import token_bytes
from tessera.models.causality import evaluating
from tessera.models.recurrence import MemoryState, SegmentedForCausalLM
from tessera.models.recurrence.segmented_input import SegmentCut
from tessera.models.stack import StackForCausalLM
from tessera.models.stack_state import StackState
from tessera.models.transformer import context_limit

UNFINISHED = "\u00b7"  # for a token in whose place a character has begun, and does not end


class TokenTexts:
    """What tokens show: characters, where those of several bytes may be cut by tokens. Without a tokenizer, numbers."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None) -> None:
        self.tokenizer = tokenizer
        self._bytes = None if getattr(tokenizer, "backend_tokenizer", None) is None else token_bytes(tokenizer)

    def of_text(self, tokens: Sequence[int], unfinished: str = "") -> tuple[str, ...]:
        """Of each token of a text; together they are the text, but for the mark of `unfinished` characters.

        A character stands where it ends.
        """
        if self._bytes is None:  # words, between which decoding may set spaces
            pairs = pairwise(tokens)
            return (*map(self._alone, tokens[:1]), *(self._behind(before, token) for before, token in pairs))
        decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        texts = []
        for index, token in enumerate(tokens):
            text = _shown(decoder.decode(self._of(token), index + 1 == len(tokens)))
            texts.append(text + unfinished * bool(decoder.getstate()[0]))
        return tuple(texts)

    def of_words(self, tokens: Iterable[int]) -> dict[int, str]:
        """Of tokens that stand alone; bytes that are no characters are shown by their numbers."""
        return {token: self._alone(token) for token in tokens}

    def _alone(self, token: int) -> str:
        if self._bytes is not None:
            return _shown(self._of(token).decode("utf-8", "surrogateescape"))
        return str(token) if self.tokenizer is None else self.tokenizer.decode([token])

    def _behind(self, before: int, token: int) -> str:
        if self.tokenizer is None:
            return str(token)
        first, both = self.tokenizer.decode([before]), self.tokenizer.decode([before, token])
        return both.removeprefix(first) if both.startswith(first) else self._alone(token)

    def _of(self, token: int) -> bytes:
        assert self._bytes is not None
        return self._bytes[token] if token < len(self._bytes) else b""  # a model may have more rows than tokens


def _shown(text: str) -> str:
    """Bytes that are no characters as \u2039E5\u203a."""
    if text.isascii():
        return text
    is_byte = ("\udc80" <= letter <= "\udcff" for letter in text)
    return "".join(f"\u2039{ord(x) - 0xDC00:02X}\u203a" if known else x for x, known in zip(text, is_byte))


def read_tokens(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, path: Path, count: int, begins: bool = True
) -> Tensor:
    """The first `count` tokens (1, T) of the text in `path`, fewer where it ends. `begins`: see `token_stream`.

    Raises `TesseraError`: no such file, not UTF-8, fewer than two tokens, or more than the model has positions for.
    """
    ids = list(islice(token_stream(text_of_file(path, PIECE), tokenizer, str(path), begins), count))
    expect(len(ids) >= 2, str(path), "the text", "hold at least two tokens", len(ids))
    if (longest := context_limit(model.config)) is not None and len(ids) > longest:
        raise TesseraError(f"inspect: --tokens must be at most {longest}, the model's positions; got {len(ids)}.")
    return torch.tensor([ids])


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
    Raises `TesseraError`: several texts, a state that is not this model's, further inputs of a text read in parts.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        state: StackState | MemoryState | None = None,
        **inputs: object,
    ) -> None:
        shape = tuple(input_ids.shape)
        expect(len(shape) == 2 and shape[0] == 1 and shape[1] > 0, "inspection", "input_ids", "be (1, T)", shape)
        self.model, self.input_ids, self.state, self.inputs = model, input_ids, state, inputs
        self.is_segmented = isinstance(model, SegmentedForCausalLM)
        self.base = model.base if self.is_segmented else model
        self.parts = self._parts()
        self.part = self.parts[0]
        in_parts = self.is_segmented or state is not None
        expect(not (in_parts and inputs), "inspection", "inputs", "be left out for a text read in parts", list(inputs))
        expect("logits_to_keep" not in inputs, "inspection", "logits_to_keep", "be left out: losses need all", "it")

    @property
    def oldest(self) -> int:
        """The lowest number of a pair that can be seen now, memory tokens left out."""
        if self.is_segmented:
            return self.part.start
        return -self.state.length if isinstance(self.state, StackState) else 0

    @torch.no_grad()
    def losses(self, after_part: Callable[[Any], None] = lambda state: None) -> Tensor:
        """Read; nats of each token given those before it, (T,), NaN for the first. The model is in evaluation mode.

        `after_part` is called after each part with the state behind it.
        """
        losses, state = [torch.full((1,), torch.nan)], self.state
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
        output = self.model(input_ids=ids, use_cache=not is_last or state is not None, **inputs)
        if is_last and state is not None:
            state.reclaim(output.past_key_values)
        return output.logits[0], None if is_last else output.past_key_values

    def _parts(self) -> list[Part]:
        steps = self.input_ids.shape[1]
        is_stack = isinstance(self.model, StackForCausalLM)
        kind = MemoryState if self.is_segmented else StackState if is_stack else type(None)
        is_state = self.state is None or isinstance(self.state, kind)
        needed = "be one of this model, a v1, v2, ARMT, RMT or PRMT"
        expect(is_state, "inspection", "state", needed, type(self.state).__name__)
        if self.is_segmented:
            if isinstance(self.state, MemoryState):
                self.state.expect_fits(self.model.empty_memory(1), "inspection")
            front = self.model.segment_runner().front
            cut = SegmentCut.of(self.model.config)
            return [Part(*border, front) for border in cut.borders(steps, cut.ends_in(self.input_ids[0]))]
        if not is_stack or self.inputs:
            return [Part(0, steps)]
        return [Part(*border) for border in pairwise([*range(0, steps, BLOCK), steps])]
