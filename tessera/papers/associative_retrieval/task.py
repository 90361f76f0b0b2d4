"""Samples of associative retrieval: `k:v,` once per pair, then the query `k-` and its answer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tessera.ops.linear_cross_entropy import IGNORED
from tessera.tasks.question_answering import QuestionBatch
from tessera.tasks.task import TASKS, Task, TokenExamples, generator_of

RULES = ("remember", "rewrite")


@TASKS.register("associative_retrieval")
@dataclass(frozen=True)
class AssociativeRetrieval(Task):
    """Pairs of a key (`key_size` symbols) and a value (one symbol) of `num_symbols` (ARMT, section 3 and appendix A).

    Attributes:
        rule: "remember": all keys of a sample differ. "rewrite": keys are drawn with replacement, and the answer is
            the latest value of the queried key. The queried key is uniform over the distinct keys that occur.
        num_pairs: of each sample.
    Symbols are 0..num_symbols - 1, then ":", ",", "-". One segment of `segment_size` tokens holds one pair.
    Raises:
        TesseraError: an unknown rule, or more pairs to remember than there are keys.
    """

    rule: str = "rewrite"
    num_pairs: int = 10
    key_size: int = 1
    num_symbols: int = 16

    summary = "the latest value of a key among pairs that were read once, some rewritten (remember, rewrite)"
    source = "Associative Recurrent Memory Transformer, section 3"
    main_score = "exact_match"
    length_setting = "num_pairs"

    def __post_init__(self) -> None:
        self._require("rule", self.rule in RULES, f"be one of {', '.join(RULES)}")
        self._require("num_pairs", self.num_pairs >= 1, "be at least 1")
        self._require("key_size", self.key_size >= 1, "be at least 1")
        self._require("num_symbols", self.num_symbols >= 2, "be at least 2")
        if self.rule == "remember":
            most = f"be at most the number of keys ({self.num_keys}, key_size {self.key_size})"
            self._require("num_pairs", self.num_pairs <= self.num_keys, most, "Use a larger key_size.")

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

    def sample(self, count: int, seed: int, split: str = "train") -> TokenExamples:
        """One question to each context: T = num_pairs segment_size + key_size + 2, the answer last."""
        batch = self.sample_questions(count, 1, generator_of(self, seed, split))
        tokens = torch.cat([batch.contexts, batch.questions.squeeze(1)], 1)
        labels = torch.cat([torch.full_like(batch.contexts, IGNORED), batch.labels.squeeze(1)], 1)
        return TokenExamples(tokens, labels)

    def sample_questions(self, count: int, questions: int, generator: torch.Generator) -> QuestionBatch:
        """Contexts (B, num_pairs segment_size), and to each of them questions with answers (B, Q, key_size + 2).

        A model with a memory reads the context once for all its questions, whose keys may repeat.
        """
        keys = self._keys(count, generator)
        values = torch.randint(self.num_symbols, (count, self.num_pairs), generator=generator)
        colon, comma = (torch.full((count, self.num_pairs, 1), self.num_symbols + i) for i in range(2))
        contexts = torch.cat([self._digits(keys), colon, values[..., None], comma], -1).flatten(1)
        queried = keys.gather(1, self._pick_distinct(keys, questions, generator))
        latest = self.num_pairs - 1 - (keys[:, None] == queried[:, :, None]).flip(-1).int().argmax(-1)
        answers = values.gather(1, latest)[..., None]
        prompts = torch.cat([self._digits(queried), torch.full_like(queried[..., None], self.num_symbols + 2)], -1)
        labels = torch.cat([torch.full_like(prompts, IGNORED), answers], -1)
        return QuestionBatch(contexts, torch.cat([prompts, answers], -1), labels)

    def scores(self, predictions: Tensor, examples: TokenExamples) -> dict[str, Tensor]:
        """`exact_match` (B,): whether the largest logit before the answer is the answer's."""
        return {"exact_match": (predictions[:, -2].argmax(-1).cpu() == examples.tokens[:, -1].cpu()).double()}

    def _keys(self, count: int, generator: torch.Generator) -> Tensor:
        if self.rule == "rewrite":
            return torch.randint(self.num_keys, (count, self.num_pairs), generator=generator)
        return torch.rand(count, self.num_keys, generator=generator).topk(self.num_pairs).indices

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


def capacity(share: float, num_pairs: int, num_values: int) -> float:
    """`k = n (v a - 1) / (v - 1)` pairs of n are held, the others guessed, for exact match a (ARMT, appendix A)."""
    return num_pairs * (num_values * share - 1) / (num_values - 1)


def capacity_error(share_error: float, num_pairs: int, num_values: int) -> float:
    """Standard error of `capacity` for that of the exact match; the estimate is linear in it."""
    return num_pairs * num_values / (num_values - 1) * share_error
