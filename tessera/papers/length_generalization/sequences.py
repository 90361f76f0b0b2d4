"""What MQMTAR, reverse and sort share: `<bos> source <sep> target <eos>`, and exact match on the target."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from tessera.base.errors import expect
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.tasks.task import Task, TokenExamples, generator_of


class Drawn(NamedTuple):
    """Sources (B, S) and targets (B, R), each row right-padded with anything beyond its length (B,)."""

    source: Tensor
    source_lengths: Tensor
    target: Tensor
    target_lengths: Tensor


@dataclass(frozen=True)
class SourceTargetTask(Task):
    """Read a source, write its target (Sparse Attention as Compact Kernel Regression, section 4.3 and appendix B.3).

    Attributes:
        length, spread: the source's length n is uniform in `length - spread .. length + spread`, of each example alone;
            rows of a batch are padded on the right. Published: 48 and 16 in training, 64 x factor and 0 in tests.
    The last four tokens of the vocabulary are `<bos> <sep> <eos> <pad>`. Labels are the target and `<eos>`. Scores are
    of the argmax under teacher forcing: all of a target right is the same event as greedy decoding writing it, since up
    to the first mistake both read the same tokens.
    """

    source: ClassVar[str] = "Sparse Attention as Compact Kernel Regression, section 4.3"
    main_score: ClassVar[str] = "exact_match"
    shortest: ClassVar[int] = 1

    length: int = 48
    spread: int = 16

    def __post_init__(self) -> None:
        where = type(self).__name__
        expect(self.spread >= 0, where, "spread", "be at least 0", self.spread)
        low = self.length - self.spread
        expect(low >= self.shortest, where, "length - spread", f"be at least {self.shortest}", low)

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Symbols, separators of the task, and the four special tokens."""

    @property
    def special(self) -> dict[str, int]:
        """`<bos> <sep> <eos> <pad>` by name."""
        return {name: self.vocab_size - 4 + index for index, name in enumerate(("bos", "sep", "eos", "pad"))}

    @abstractmethod
    def draw(self, lengths: Tensor, generator: torch.Generator) -> Drawn:
        """An example for each of `lengths` (B,)."""

    @abstractmethod
    def answer(self, source: list[int]) -> list[int]:
        """The rule: the target of one source."""

    @abstractmethod
    def guess_answer(self, source: list[int], generator: torch.Generator) -> list[int]:
        """An answer of the right form, made without the rule."""

    @abstractmethod
    def chance_of(self, source: list[int]) -> float:
        """Probability that `guess_answer` is right."""

    def scored(self, labels: Tensor) -> Tensor:
        """Which labels (B, T) must be right: the target's symbols."""
        return (labels >= 0) & (labels < self.special["bos"])

    def at_length(self, length: int) -> Self:
        """The same task with sources of exactly this length."""
        return replace(self, length=length, spread=0)

    def sample(self, count: int, seed: int, split: str = "train") -> TokenExamples:
        """See `Task.sample`; T is that of the longest example."""
        generator = generator_of(self, seed, split)
        span = (self.length - self.spread, self.length + self.spread + 1)
        return self._assemble(self.draw(torch.randint(*span, (count,), generator=generator), generator))

    def scores(self, predictions: Tensor, examples: TokenExamples) -> dict[str, Tensor]:
        """Exact match, and the share of the target's symbols that are right; from logits (B, T, V)."""
        labels = examples.labels[:, 1:].to(predictions.device)
        scored = self.scored(labels)
        is_right = (predictions[:, :-1].argmax(-1) == labels) & scored
        hits, total = is_right.sum(1), scored.sum(1)
        return {"exact_match": (hits == total).double().cpu(), "token_accuracy": (hits / total).double().cpu()}

    def oracle(self, examples: TokenExamples) -> Tensor:
        """Logits of the rule, applied to what stands before `<sep>`."""
        return self._logits(examples, self.answer)

    def guess(self, examples: TokenExamples, seed: int) -> Tensor:
        """Logits of `guess_answer`."""
        generator = torch.Generator().manual_seed(seed)
        return self._logits(examples, lambda source: self.guess_answer(source, generator))

    def chance(self, examples: TokenExamples) -> float:
        """Mean of `chance_of`."""
        sources = self._sources(examples)
        return sum(map(self.chance_of, sources)) / len(sources)

    def _assemble(self, drawn: Drawn) -> TokenExamples:
        special, (source, read, target, written) = self.special, drawn
        width = int((read + written).max()) + 3
        # A column too many takes what lies beyond the lengths.
        tokens = torch.full((len(read), width + 1), special["pad"])
        tokens[:, 0] = special["bos"]
        for symbols, lengths, start in ((source, read, torch.ones_like(read)), (target, written, read + 2)):
            index = torch.arange(symbols.shape[1])
            columns = torch.where(index < lengths[:, None], index + start[:, None], width)
            tokens.scatter_(1, columns, symbols)
        tokens[torch.arange(len(read)), read + 1] = special["sep"]
        tokens[torch.arange(len(read)), read + written + 2] = special["eos"]
        column = torch.arange(width)
        is_target = (column > read[:, None] + 1) & (column <= (read + written)[:, None] + 2)
        tokens = tokens[:, :-1].contiguous()
        return TokenExamples(tokens, torch.where(is_target, tokens, IGNORED))

    def _sources(self, examples: TokenExamples) -> list[list[int]]:
        rows = examples.tokens.tolist()
        return [row[1 : row.index(self.special["sep"])] for row in rows]

    def _logits(self, examples: TokenExamples, answer: Callable[[list[int]], list[int]]) -> Tensor:
        logits = torch.zeros(*examples.tokens.shape, self.vocab_size)
        for row, source in enumerate(self._sources(examples)):
            said = torch.tensor([*answer(source), self.special["eos"]])
            logits[row, len(source) + 1 + torch.arange(len(said)), said] = 1.0
        return logits
