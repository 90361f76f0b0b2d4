"""A bigram language in which a few trigger characters have a successor of their own in each sequence."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from tessera.base.errors import expect
from tessera.tasks.task import TASKS, Task, TokenExamples, generator_of

COUNTS = Path(__file__).parent / "shakespeare_bigrams.txt"
KINDS = ("frequent", "drawn")


class Bigrams(NamedTuple):
    """A language in which the next character depends on the last one alone.

    Attributes:
        characters: token i is the i-th. counts: (V, V) integers; counts[i, j] is how often j followed i.
    """

    characters: str
    counts: Tensor


def drawn(counts: Tensor, uniform: Tensor) -> Tensor:
    """Tokens (B,): the least index whose cumulative count exceeds `uniform` (B,) in [0, 1) times the total.

    `counts` (V,) or (B, V) are integers, so that it is exact.
    """
    cumulative = counts.cumsum(-1)
    rank = (uniform * cumulative[..., -1]).floor().long()
    return torch.searchsorted(cumulative, rank[:, None], right=True)[:, 0]


@cache
def shakespeare_bigrams() -> Bigrams:
    """The bigrams of the 65 characters of tiny Shakespeare (1,115,394 characters, Karpathy 2015)."""
    characters, *rows = COUNTS.read_text(encoding="utf-8").splitlines()
    return Bigrams(json.loads(characters), torch.tensor([[int(count) for count in row.split(" ")] for row in rows]))


@dataclass(frozen=True)
class InductionDetails:
    """Of each sequence: its `triggers` (B, K), and `successors` (B, K), the token that follows each of them."""

    triggers: Tensor
    successors: Tensor


@TASKS.register("induction")
@dataclass(frozen=True)
class Induction(Task):
    """Predict the successor of a trigger from its second occurrence on (Bietti et al. 2023, section 3).

    A sequence of `length` tokens is drawn from the bigrams of the 65 characters of tiny Shakespeare, the first token
    from their unigrams; but a trigger q_k is always followed by o_k, drawn for each sequence anew, uniformly from all
    characters. `triggers`: "frequent", the `num_triggers` most frequent characters in all sequences, or "drawn", others
    in each sequence, without replacement from the unigrams. Every token is a label.

    Scores of each example, over the positions at which a trigger stands (NaN without any):

        - accuracy: share of right successors, from the trigger's second occurrence on.
        - first_accuracy: at its first occurrence, where nothing shows the successor.
        - loss: nats per successor from the second occurrence on. other_loss: nats per token where no trigger stands.
    """

    summary = "the successor of a trigger character, which differs from sequence to sequence (induction heads)"
    source = "Bietti et al. 2023, section 3; Memory Mosaics, section 3"
    main_score = "accuracy"

    length: int = 256
    num_triggers: int = 5
    triggers: str = "frequent"

    def __post_init__(self) -> None:
        most = self.vocab_size
        self._require("length", self.length >= 4, "be at least 4")
        self._require("num_triggers", 1 <= self.num_triggers <= most, f"lie in 1..{most}")
        self._require("triggers", self.triggers in KINDS, f"be one of {', '.join(KINDS)}")

    @property
    def vocab_size(self) -> int:
        """The characters."""
        return len(shakespeare_bigrams().characters)

    def sample(self, count: int, seed: int, split: str = "train") -> TokenExamples:
        """`count` sequences."""
        expect(count >= 1, "Induction", "count", "be at least 1", count)
        counts, generator = shakespeare_bigrams().counts, generator_of(self, seed, split)
        unigrams = counts.sum(1)
        if self.triggers == "frequent":
            triggers = unigrams.topk(self.num_triggers).indices.expand(count, -1)
        else:
            triggers = torch.multinomial(unigrams.double().expand(count, -1), self.num_triggers, generator=generator)
        successors = torch.randint(self.vocab_size, (count, self.num_triggers), generator=generator)
        # What follows each token of each sequence: -1 where the bigrams say it.
        fixed = torch.full((count, self.vocab_size), -1).scatter_(1, triggers, successors)
        uniform = torch.rand(self.length, count, generator=generator, dtype=torch.float64)
        steps = [drawn(unigrams, uniform[0])]
        for draws in uniform[1:]:
            successor = fixed.gather(1, steps[-1][:, None])[:, 0]
            steps.append(torch.where(successor < 0, drawn(counts[steps[-1]], draws), successor))
        tokens = torch.stack(steps, 1)
        labels = tokens.clone()
        labels[:, 0] = -100
        return TokenExamples(tokens, labels, InductionDetails(triggers, successors))

    def scores(self, predictions: Tensor, examples: TokenExamples) -> dict[str, Tensor]:
        """See the class."""
        logits, targets = predictions[:, :-1].cpu().float(), examples.tokens[:, 1:]
        losses = cross_entropy(logits.transpose(1, 2), targets, reduction="none").double()
        right = (logits.argmax(-1) == targets).double()
        occurrence = self.occurrences(examples)[:, :-1]
        return {
            "accuracy": _mean_where(occurrence >= 2, right),
            "first_accuracy": _mean_where(occurrence == 1, right),
            "loss": _mean_where(occurrence >= 2, losses),
            "other_loss": _mean_where(occurrence == 0, losses),
        }

    def occurrences(self, examples: TokenExamples) -> Tensor:
        """(B, T): n where a trigger stands for the n-th time in its sequence, 0 where none stands."""
        stands = examples.tokens[:, None, :] == examples.details.triggers[:, :, None]
        return (stands * stands.cumsum(-1)).sum(1)


def _mean_where(chosen: Tensor, values: Tensor) -> Tensor:
    """(B,): the mean of `values` (B, T) over the `chosen` steps; NaN where there are none."""
    return (values * chosen).sum(1) / chosen.sum(1)
