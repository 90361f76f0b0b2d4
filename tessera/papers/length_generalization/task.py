"""MQMTAR, reverse and sort: `<bos> source <sep> target <eos>`, and exact match on the target."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from tessera.base.errors import expect
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.tasks.task import TASKS, Task, TokenExamples, generator_of

FILLER, PAIR_SEPARATOR, QUERY_SEPARATOR, FIRST_SYMBOL = 0, 1, 2, 3
BLOCK = 6  # k1 k2 1 v1 v2 and at least one filler


@dataclass(frozen=True)
class SourceTargetTask(Task):
    """Read a source, write its target (Sparse Attention as Compact Kernel Regression, section 4.3 and appendix B.3).

    The source's length n is uniform in `length - spread .. length + spread`, of each example alone; rows of a batch are
    padded on the right. The last four tokens of the vocabulary are `<bos> <sep> <eos> <pad>`. Labels are the target and
    `<eos>`. Scores are of the argmax under teacher forcing: all of a target right is the same event as greedy decoding
    writing it, since up to the first mistake both read the same tokens.
    """

    source: ClassVar[str] = "Sparse Attention as Compact Kernel Regression, section 4.3"
    main_score: ClassVar[str] = "exact_match"
    shortest: ClassVar[int] = 1
    first_symbol: ClassVar[int] = 0  # in front of the symbols stand the task's own tokens

    length: int = 48
    spread: int = 16
    num_symbols: int = 32

    def __post_init__(self) -> None:
        self._require("spread", self.spread >= 0, "be at least 0")
        low, needed = self.length - self.spread, f"be at least {self.shortest}"
        expect(low >= self.shortest, type(self).__name__, "length - spread", needed, low)

    @property
    def vocab_size(self) -> int:
        """The task's own tokens, symbols, and the four special tokens."""
        return self.first_symbol + self.num_symbols + 4

    @property
    def special(self) -> dict[str, int]:
        """`<bos> <sep> <eos> <pad>` by name."""
        return {name: self.vocab_size - 4 + index for index, name in enumerate(("bos", "sep", "eos", "pad"))}

    @abstractmethod
    def draw(self, lengths: Tensor, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
        """Source and target of an example for each of `lengths` (B,)."""

    def scored(self, labels: Tensor) -> Tensor:
        """Which labels (B, T) must be right: the target's symbols."""
        return (labels >= 0) & (labels < self.special["bos"])

    def at_length(self, length: int) -> Self:
        """With sources of exactly this length."""
        return replace(self, length=length, spread=0)

    def sample(self, count: int, seed: int, split: str = "train") -> TokenExamples:
        """See `Task.sample`; T is that of the longest example."""
        generator = generator_of(self, seed, split)
        lengths = torch.randint(self.length - self.spread, self.length + self.spread + 1, (count,), generator=generator)
        bos, sep, eos, padding = (torch.tensor([token]) for token in self.special.values())
        tokens, labels = [], []
        for source, target in self.draw(lengths, generator):
            tokens.append(torch.cat([bos, source, sep, target, eos]))
            labels.append(torch.cat([torch.full((len(source) + 2,), IGNORED), target, eos]))
        return TokenExamples(pad_sequence(tokens, True, int(padding)), pad_sequence(labels, True, IGNORED))

    def scores(self, predictions: Tensor, examples: TokenExamples) -> dict[str, Tensor]:
        """Exact match, and the share of the target's symbols that are right; from logits (B, T, V)."""
        labels = examples.labels[:, 1:].to(predictions.device)
        scored = self.scored(labels)
        is_right = (predictions[:, :-1].argmax(-1) == labels) & scored
        hits, total = is_right.sum(1), scored.sum(1)
        return {"exact_match": (hits == total).double().cpu(), "token_accuracy": (hits / total).double().cpu()}


@dataclass(frozen=True)
class Ordering(SourceTargetTask):
    """n symbols, independent and uniform in 0..num_symbols - 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require("num_symbols", self.num_symbols >= 2, "be at least 2")

    @abstractmethod
    def target(self, symbols: Tensor) -> Tensor:
        """The target of a source (n,)."""

    def draw(self, lengths: Tensor, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
        """See `SourceTargetTask.draw`."""
        symbols = torch.randint(self.num_symbols, (len(lengths), int(lengths.max())), generator=generator)
        sources = [row[:length] for row, length in zip(symbols, lengths.tolist())]
        return [(source, self.target(source)) for source in sources]


@TASKS.register("reverse")
@dataclass(frozen=True)
class Reverse(Ordering):
    """`y_i = x_(n + 1 - i)`."""

    summary: ClassVar[str] = "write a sequence backwards; exact match at lengths beyond training"

    def target(self, symbols: Tensor) -> Tensor:
        """Backwards."""
        return symbols.flip(0)


@TASKS.register("sort")
@dataclass(frozen=True)
class Sort(Ordering):
    """`y_1 <= ... <= y_n`."""

    summary: ClassVar[str] = "write a sequence in ascending order; exact match at lengths beyond training"

    def target(self, symbols: Tensor) -> Tensor:
        """Ascending."""
        return symbols.sort().values


@TASKS.register("mqmtar")
@dataclass(frozen=True)
class MultiQueryRecall(SourceTargetTask):
    """Recall the values of `num_queries` keys; keys and values are words of two symbols.

    A source of length n holds `floor(0.8 n / 6)` pairs `k1 k2 1 v1 v2`, distinct keys and distinct values, each pair
    followed by filler (0), the rest of the filler at random between them. Then come the queries `2 k1 k2`, drawn with
    replacement from the stored keys; the target is `2 v1 v2` for each. Exact match asks for all values, not the 2s.
    The words are of two fixed vocabularies, drawn by `vocabulary_seed` alone, which all splits share, as published.
    """

    summary: ClassVar[str] = "MQMTAR: recall the two-token values of several keys; exact match beyond training lengths"
    shortest: ClassVar[int] = 8
    first_symbol: ClassVar[int] = FIRST_SYMBOL

    num_symbols: int = 256
    num_words: int = 10_000
    num_queries: int = 4
    vocabulary_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        possible, pairs = self.num_symbols**2, num_pairs(self.length + self.spread)
        self._require("num_queries", self.num_queries >= 1, "be at least 1")
        self._require("num_words", self.num_words <= possible, f"be at most num_symbols^2 ({possible})")
        least = f"be at least the number of pairs in the longest source ({pairs})"
        self._require("num_words", self.num_words >= pairs, least)

    def scored(self, labels: Tensor) -> Tensor:
        """The values' symbols: the separators between them need no knowledge."""
        return super().scored(labels) & (labels >= FIRST_SYMBOL)

    def scores(self, predictions: Tensor, examples: TokenExamples) -> dict[str, Tensor]:
        """Besides, the shares of right first symbols (found by the key) and right second ones (found by what precedes).

        `second_alone`: of second symbols whose first occurs once in the stored pairs; `second_shared`: of the others.
        """
        labels = examples.labels[:, 1:]
        symbols = self.scored(labels)
        is_right = (predictions[:, :-1].argmax(-1).cpu() == labels)[symbols]
        right = is_right.view(-1, self.num_queries, 2).double()
        firsts = labels[symbols].view(-1, self.num_queries, 2)[:, :, :1]
        # The stored pairs end before <sep> and the queries.
        end = (labels >= 0).int().argmax(1)[:, None] - 3 * self.num_queries
        stored = torch.where(torch.arange(examples.tokens.shape[1]) < end, examples.tokens, FILLER)
        alone = (stored[:, None] == firsts).sum(-1) == 1
        second = right[:, :, 1]
        return {
            **super().scores(predictions, examples),
            "first_symbol": right[:, :, 0].mean(1),
            "second_symbol": second.mean(1),
            "second_alone": second.masked_fill(~alone, torch.nan).nanmean(1),
            "second_shared": second.masked_fill(alone, torch.nan).nanmean(1),
        }

    def draw(self, lengths: Tensor, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
        """See `SourceTargetTask.draw`."""
        pairs = num_pairs(lengths)
        most, fillers = int(pairs.max()), lengths - BLOCK * pairs
        keys, values = (
            words[distinct(len(lengths), most, self.num_words, generator)]
            for words in vocabularies(self.num_symbols, self.num_words, self.vocabulary_seed)
        )
        units = torch.arange(most + int(fillers.max()))  # pairs, then fillers
        unused = (units >= pairs[:, None]) & ((units < most) | (units - most >= fillers[:, None]))
        order = torch.rand(len(lengths), len(units), generator=generator).masked_fill(unused, 2.0).argsort(1)
        queried = (torch.rand(len(lengths), self.num_queries, generator=generator) * pairs[:, None]).long()
        contexts = lay_out(keys, values, order, pairs + fillers).split(lengths.tolist())
        rows = torch.arange(len(lengths))[:, None]
        queries, answers = (pad(w[rows, queried], (1, 0), value=QUERY_SEPARATOR).flatten(1) for w in (keys, values))
        return [(torch.cat(source), target) for *source, target in zip(contexts, queries, answers)]


def num_pairs(length):
    """Pairs in a context of `length` tokens (an integer, or a tensor of them): `floor(0.8 length / 6)`."""
    return 4 * length // (5 * BLOCK)


@lru_cache(maxsize=8)
def vocabularies(num_symbols: int, num_words: int, seed: int) -> tuple[Tensor, Tensor]:
    """The keys and the values that there are, each (num_words, 2) tokens, distinct."""
    generator = torch.Generator().manual_seed(seed)
    picks = [torch.randperm(num_symbols**2, generator=generator)[:num_words] for _ in range(2)]
    keys, values = (torch.stack([pick // num_symbols, pick % num_symbols], 1) + FIRST_SYMBOL for pick in picks)
    return keys, values


def distinct(rows: int, count: int, of: int, generator: torch.Generator) -> Tensor:
    """Integers (rows, count) in 0..of - 1, distinct in each row and otherwise uniform.

    Entries that repeat an earlier one are drawn again until there is none: few are, where a permutation of all `of`
    would cost milliseconds.
    """
    drawn = torch.randint(of, (rows, count), generator=generator)
    if count > of // 4:
        return torch.rand(rows, of, generator=generator).argsort(1)[:, :count]
    while True:
        ordered, places = drawn.sort(dim=1, stable=True)
        repeats = pad(ordered[:, 1:] == ordered[:, :-1], (1, 0))
        if not repeats.any():
            return drawn
        again = torch.zeros_like(repeats).scatter_(1, places, repeats)
        drawn[again] = torch.randint(of, (int(again.sum()),), generator=generator)


def lay_out(keys: Tensor, values: Tensor, order: Tensor, counts: Tensor) -> Tensor:
    """Contexts of all rows, one behind the other: blocks of pairs (B, P, 2) and single fillers in this order (B, U).

    Pairs have the first P numbers. Of each row the first `counts` (B,) numbers are laid out.
    """
    is_used, is_pair = torch.arange(order.shape[1]) < counts[:, None], order < keys.shape[1]
    ends = (torch.where(is_pair, BLOCK, 1) * is_used).flatten().cumsum(0).view_as(order)
    contexts = torch.full((int(ends[-1, -1]),), FILLER)
    blocks = torch.cat([pad(keys, (0, 1), value=PAIR_SEPARATOR), values], 2)
    rows, places = (is_used & is_pair).nonzero(as_tuple=True)
    contexts[ends[rows, places, None] - BLOCK + torch.arange(BLOCK - 1)] = blocks[rows, order[rows, places]]
    return contexts
