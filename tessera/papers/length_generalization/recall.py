"""Multi-query multi-token associative recall (MQMTAR): pairs of words among filler, then queries."""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from tessera.base.errors import expect
from tessera.papers.length_generalization.sequences import Drawn, SourceTargetTask
from tessera.tasks.task import TASKS, Task, TokenExamples

FILLER, PAIR_SEPARATOR, QUERY_SEPARATOR, FIRST_SYMBOL = 0, 1, 2, 3
BLOCK = 6  # k1 k2 1 v1 v2 and at least one filler


@TASKS.register("mqmtar")
@dataclass(frozen=True)
class MultiQueryRecall(SourceTargetTask):
    """Recall the values of `num_queries` keys; keys and values are words of two symbols.

    A source of length n holds `floor(0.8 n / 6)` pairs `k1 k2 1 v1 v2`, distinct keys and distinct values, each pair
    followed by filler (0), the rest of the filler at random between them. Then come the queries `2 k1 k2`, drawn with
    replacement from the stored keys; the target is `2 v1 v2` for each. Exact match asks for all values, not the 2s.
    A guess takes one of the P stored values for each query: right with probability `P^-num_queries`.

    Attributes:
        num_symbols: tokens 3, 4, ... that words are made of. num_words: keys, and values, that there are: two fixed
            vocabularies, drawn by `vocabulary_seed` alone, which all splits share, as published.
    """

    summary: ClassVar[str] = "MQMTAR: recall the two-token values of several keys; exact match beyond training lengths"
    shortest: ClassVar[int] = 8

    num_symbols: int = 256
    num_words: int = 10_000
    num_queries: int = 4
    vocabulary_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        where, possible = type(self).__name__, self.num_symbols**2
        pairs = num_pairs(self.length + self.spread)
        expect(self.num_queries >= 1, where, "num_queries", "be at least 1", self.num_queries)
        expect(self.num_words <= possible, where, "num_words", f"be at most num_symbols^2 ({possible})", self.num_words)
        least = f"be at least the number of pairs in the longest source ({pairs})"
        expect(self.num_words >= pairs, where, "num_words", least, self.num_words)

    @classmethod
    def variants(cls) -> list[Task]:
        """As published, and one so small that a guess is right now and then."""
        return [cls(), cls(length=20, spread=5, num_symbols=4, num_words=5, num_queries=2)]

    @property
    def vocab_size(self) -> int:
        """Filler, two separators, symbols and the four special tokens."""
        return FIRST_SYMBOL + self.num_symbols + 4

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

    def draw(self, lengths: Tensor, generator: torch.Generator) -> Drawn:
        """See `SourceTargetTask.draw`."""
        pairs = num_pairs(lengths)
        keys, values = (
            words[distinct(len(lengths), int(pairs.max()), self.num_words, generator)]
            for words in vocabularies(self.num_symbols, self.num_words, self.vocabulary_seed)
        )
        context = lay_out(keys, values, pairs, lengths, generator)
        places = (torch.rand(len(lengths), self.num_queries, generator=generator) * pairs[:, None]).long()
        queries, answers = (list_words(words, places) for words in (keys, values))
        # The queries follow each context directly; beyond them the row is padding.
        source = torch.cat([context, torch.zeros_like(queries)], 1)
        source.scatter_(1, lengths[:, None] + torch.arange(queries.shape[1]), queries)
        return Drawn(source, lengths + queries.shape[1], answers, torch.full_like(lengths, answers.shape[1]))

    def answer(self, source: list[int]) -> list[int]:
        """Look every query up."""
        stored, queries = self._parse(source)
        return [token for query in queries for token in (QUERY_SEPARATOR, *stored[query])]

    def guess_answer(self, source: list[int], generator: torch.Generator) -> list[int]:
        """One of the stored values for each query."""
        stored, queries = self._parse(source)
        values = list(stored.values())
        picked = torch.randint(len(values), (len(queries),), generator=generator).tolist()
        return [token for pick in picked for token in (QUERY_SEPARATOR, *values[pick])]

    def chance_of(self, source: list[int]) -> float:
        """`P^-num_queries` with P stored pairs."""
        return float(len(self._parse(source)[0])) ** -self.num_queries

    def _parse(self, source: list[int]) -> tuple[dict[tuple[int, ...], tuple[int, ...]], list[tuple[int, ...]]]:
        """The stored values by key, and the queried keys."""
        context, queries = source[: -3 * self.num_queries], source[-3 * self.num_queries :]
        separators = [column for column, token in enumerate(context) if token == PAIR_SEPARATOR]
        stored = {tuple(context[i - 2 : i]): tuple(context[i + 1 : i + 3]) for i in separators}
        return stored, [tuple(queries[start + 1 : start + 3]) for start in range(0, len(queries), 3)]


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

    Entries that repeat an earlier one are drawn again until there is none. No integer is treated differently from
    another, so every choice in every order is equally likely; and few are drawn twice, where a permutation of all
    `of` would cost milliseconds.
    """
    drawn = torch.randint(of, (rows, count), generator=generator)
    if count > of // 4:
        return torch.rand(rows, of, generator=generator).argsort(1)[:, :count]
    while True:
        ordered, places = drawn.sort(dim=1, stable=True)
        again = torch.zeros_like(drawn, dtype=torch.bool)
        again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
        if not bool(again.any()):
            return drawn
        again = torch.zeros_like(again).scatter_(1, places, again)
        drawn[again] = torch.randint(of, (int(again.sum()),), generator=generator)


def lay_out(keys: Tensor, values: Tensor, pairs: Tensor, lengths: Tensor, generator: torch.Generator) -> Tensor:
    """Contexts (B, S): blocks of pairs and single fillers in random order."""
    rows, most, longest = len(lengths), keys.shape[1], int(lengths.max())
    fillers = lengths - BLOCK * pairs
    units = torch.arange(most + int(fillers.max()))
    sizes = torch.where(units < pairs[:, None], BLOCK, 1)
    unused = (units >= pairs[:, None]) & ((units < most) | (units - most >= fillers[:, None]))
    order = torch.rand(rows, len(units), generator=generator).masked_fill(unused, 2.0).argsort(1)
    ends = sizes.gather(1, order).cumsum(1)
    starts = torch.zeros_like(ends).scatter_(1, order, ends - sizes.gather(1, order))[:, :most]
    mark = torch.full((rows, most, 1), PAIR_SEPARATOR)
    blocks = torch.cat([keys, mark, values], -1)
    # A column too many takes the pairs of rows that hold fewer.
    columns = torch.where((units[:most] < pairs[:, None])[..., None], starts[..., None] + torch.arange(5), longest)
    context = torch.full((rows, longest + 1), FILLER)
    return context.scatter_(1, columns.flatten(1), blocks.flatten(1))[:, :-1]


def list_words(words: Tensor, places: Tensor) -> Tensor:
    """`2 w1 w2` for each of the words (B, P, 2) at `places` (B, Q): (B, 3 Q)."""
    picked = words.gather(1, places[..., None].expand(-1, -1, 2))
    return torch.cat([torch.full_like(picked[..., :1], QUERY_SEPARATOR), picked], -1).flatten(1)
