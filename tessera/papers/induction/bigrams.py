"""How often each character follows each other one in tiny Shakespeare."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

COUNTS = Path(__file__).parent / "shakespeare_bigrams.txt"


@dataclass(frozen=True)
class Bigrams:
    """A language in which the next character depends on the last one alone.

    Attributes:
        characters: token i is the i-th. counts: (V, V) integers; counts[i, j] is how often j followed i.
    """

    characters: str
    counts: Tensor

    def most_frequent(self, number: int) -> Tensor:
        """So many tokens (number,), the most frequent first."""
        return self.counts.sum(1).topk(number).indices

    def first(self, uniform: Tensor) -> Tensor:
        """First tokens, drawn from the unigram distribution with `uniform` (B,) in [0, 1)."""
        return _drawn(self.counts.sum(1), uniform)

    def next(self, tokens: Tensor, uniform: Tensor) -> Tensor:
        """What follows `tokens` (B,), drawn with `uniform` (B,) in [0, 1)."""
        return _drawn(self.counts[tokens], uniform)


def _drawn(counts: Tensor, uniform: Tensor) -> Tensor:
    """The least index whose cumulative count exceeds `uniform` times the total: exact, in integers."""
    cumulative = counts.cumsum(-1)
    place = (uniform * cumulative[..., -1]).floor().long()
    return torch.searchsorted(cumulative, place[:, None], right=True)[:, 0]


@cache
def shakespeare_bigrams() -> Bigrams:
    """The bigrams of the 65 characters of tiny Shakespeare (1,115,394 characters, Karpathy 2015)."""
    characters, *rows = COUNTS.read_text(encoding="utf-8").splitlines()
    return Bigrams(json.loads(characters), torch.tensor([[int(count) for count in row.split(" ")] for row in rows]))
