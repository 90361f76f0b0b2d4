"""Samples of associative retrieval: `k:v,` once per pair, then the query `k-` and its answer."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tessera.errors import expect

TASKS = ("remember", "rewrite")


class Batch(NamedTuple):
    """`tokens` (B, T) integers, `answer_mask` booleans (B, T): the position that predicts the answer."""

    tokens: Tensor
    answer_mask: Tensor


@dataclass(frozen=True)
class RetrievalTask:
    """Pairs of a key (`key_size` symbols) and a value (one symbol) of `num_symbols` (ARMT, section 3 and appendix A.5).

    Attributes:
        task: "remember": all keys of a sample differ. "rewrite": keys are drawn with replacement, and the answer is
            the latest value of the queried key. The queried key is uniform over the distinct keys that occur.
    Symbols are 0..num_symbols - 1, then ":", ",", "-". One segment of `segment_size` tokens holds one pair.
    """

    task: str
    key_size: int = 1
    num_symbols: int = 16

    def __post_init__(self) -> None:
        where = "RetrievalTask"
        expect(self.task in TASKS, where, "task", f"be one of {', '.join(TASKS)}", repr(self.task))
        expect(self.key_size >= 1, where, "key_size", "be at least 1", self.key_size)

    @property
    def vocab_size(self) -> int:
        """Symbols and the three separators."""
        return self.num_symbols + 3

    @property
    def segment_size(self) -> int:
        """Tokens of one pair: key, ":", value, ","."""
        return self.key_size + 3

    @property
    def num_keys(self) -> int:
        """How many different keys there are."""
        return self.num_symbols**self.key_size

    def sample(self, num_pairs: int, batch: int, generator: torch.Generator) -> Batch:
        """`batch` samples of `num_pairs` pairs; T = num_pairs segment_size + key_size + 2.

        Raises:
            TesseraError: more pairs to remember than there are keys.
        """
        context, questions = self.sample_questions(num_pairs, batch, 1, generator)
        tokens = torch.cat([context, questions.squeeze(1)], 1)
        mask = torch.zeros_like(tokens, dtype=torch.bool)
        mask[:, -2] = True
        return Batch(tokens, mask)

    def sample_questions(
        self, num_pairs: int, batch: int, num_questions: int, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Contexts (B, num_pairs segment_size), and to each of them questions with answers (B, Q, key_size + 2)."""
        keys = self._keys(num_pairs, batch, generator)
        values = torch.randint(self.num_symbols, (batch, num_pairs), generator=generator)
        separators = (torch.full((batch, num_pairs, 1), self.num_symbols + i) for i in range(2))
        colon, comma = separators
        context = torch.cat([self._digits(keys), colon, values[..., None], comma], -1).flatten(1)
        asked = keys.gather(1, self._pick_distinct(keys, num_questions, generator))
        latest = num_pairs - 1 - (keys[:, None] == asked[:, :, None]).flip(-1).int().argmax(-1)
        answers = values.gather(1, latest)[..., None]
        dash = torch.full_like(answers, self.num_symbols + 2)
        return context, torch.cat([self._digits(asked), dash, answers], -1)

    def _keys(self, num_pairs: int, batch: int, generator: torch.Generator) -> Tensor:
        if self.task == "rewrite":
            return torch.randint(self.num_keys, (batch, num_pairs), generator=generator)
        rule = f"be at most the number of keys ({self.num_keys}, key_size {self.key_size})"
        expect(num_pairs <= self.num_keys, "RetrievalTask", "num_pairs", rule, num_pairs, "Use a larger key_size.")
        return torch.rand(batch, self.num_keys, generator=generator).topk(num_pairs).indices

    @staticmethod
    def _pick_distinct(keys: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Places of keys (B, count), each uniform over the distinct keys of its row: only first occurrences can win."""
        seen_before = (keys[:, :, None] == keys[:, None, :]).tril(-1).any(-1)
        draws = torch.rand(len(keys), count, keys.shape[1], generator=generator)
        return draws.masked_fill(seen_before[:, None], -1.0).argmax(-1)

    def _digits(self, keys: Tensor) -> Tensor:
        """The symbols (..., key_size) of keys, most significant first."""
        powers = self.num_symbols ** torch.arange(self.key_size - 1, -1, -1)
        return keys[..., None] // powers % self.num_symbols
