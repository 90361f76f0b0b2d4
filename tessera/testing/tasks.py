"""What every task must do."""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from collections.abc import Set as AbstractSet
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from tessera.models.forking import state_tensors
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.tasks.task import SPLITS, TokenExamples, estimate
from tessera.testing.laws import laws_in, try_laws

COUNT = 24
# Six standard errors: one check in a billion fails by chance.
STANDARD_ERRORS = 6


class TaskCase(ABC):
    """A task, and what its laws need to know of it.

    Attributes:
        task: with its settings. holds_out_twice: whether validation and test are held apart from each other, too.
    """

    holds_out_twice = True

    def __init__(self, task: Any) -> None:
        self.task = task

    @abstractmethod
    def oracle(self, examples: Any) -> Any:
        """Predictions of something that knows the rule; its `main_score` is 1."""

    @abstractmethod
    def guess(self, examples: Any, seed: int) -> Any:
        """Predictions of something that knows nothing but the kind of answer."""

    @abstractmethod
    def chance(self, examples: Any) -> float:
        """The expected `main_score` of `guess` on these examples, by formula."""

    def held_apart(self, examples: Any) -> AbstractSet[Hashable]:
        """What no other split's examples may share with these; empty where the paper holds nothing apart."""
        return set()


def check_task(case: TaskCase) -> None:
    """Run every law of `LAWS` on the task of `case`; raises AssertionError at the first that it breaks."""
    try_laws(LAWS, case)


def _same(value: Any, other: Any) -> bool:
    """Equal bytes in every tensor."""
    pairs = list(zip(state_tensors(value), state_tensors(other), strict=True))
    return bool(pairs) and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def determinism(case: TaskCase) -> None:
    """The seed and the split decide, the global random state does not, and nothing of it is used up."""
    task = case.task
    torch.manual_seed(1)
    first = task.sample(COUNT, 3)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert _same(first, task.sample(COUNT, 3)), "the global random state changes the examples"
    assert torch.equal(before, torch.get_rng_state()), "sampling uses the global random state"
    other = task.sample(COUNT, 4)
    assert not _same(first, other), "the seed changes nothing"
    if isinstance(first, TokenExamples):  # as where example i is drawn by the seed plus i
        shared = torch.equal(first.tokens[1:], other.tokens[:-1])
        assert not shared, "one seed repeats the examples of another, but for one"
    for split in SPLITS[1:]:
        assert not _same(first, task.sample(COUNT, 3, split)), f"{split} repeats train"


def splits_apart(case: TaskCase) -> None:
    """No automaton, triple or vocabulary of one split is in another, over several seeds."""
    seen: dict[str, set] = {split: set() for split in SPLITS}
    for split in SPLITS:
        for seed in range(3):
            seen[split] |= case.held_apart(case.task.sample(COUNT, seed, split))
    for split, other in combinations(SPLITS, 2):
        if case.holds_out_twice or split != "validation":
            assert not seen[split] & seen[other], f"{split} and {other} share something"


def tokens(case: TaskCase) -> None:
    """Labels repeat the tokens where predictions count, and something counts in every example."""
    examples = case.task.sample(COUNT, 0)
    if not isinstance(examples, TokenExamples):
        return
    is_answer = examples.labels != IGNORED
    assert examples.tokens.dtype == torch.int64
    assert (examples.tokens >= 0).all()
    assert is_answer.any(1).all(), "an example asks for nothing"
    assert not is_answer[:, 0].any(), "nothing comes before the first token, so nothing predicts it"
    assert torch.equal(examples.labels[is_answer], examples.tokens[is_answer]), "labels are shifted or wrong"


def oracle(case: TaskCase) -> None:
    """Who knows the rule scores 1, in every split, and the score of a wrong answer is lower, of its example alone."""
    task = case.task
    for split in SPLITS:
        examples = task.sample(COUNT, 5, split)
        score = task.scores(case.oracle(examples), examples)[task.main_score]
        assert score.shape == (len(examples),), "scores are per example"
        torch.testing.assert_close(score[~score.isnan()].double(), torch.ones_like(score[~score.isnan()]).double())
    known, guessed, half = case.oracle(examples), case.guess(examples, 0), COUNT // 2
    assert isinstance(known, Tensor), "predictions are one tensor"
    apart = torch.cat([score[:half], task.scores(guessed, examples)[task.main_score][half:]])
    mixed = task.scores(torch.cat([known[:half], guessed[half:]]), examples)[task.main_score]
    torch.testing.assert_close(mixed, apart, equal_nan=True, msg="one example's prediction changes another's score")
    shifted = task.scores(known.roll(1, 0), examples)[task.main_score]
    assert estimate(shifted).mean < 1.0, "the answers of another example score as well"


def chance(case: TaskCase) -> None:
    """A guess scores what the formula says, within its standard error, and less than the oracle."""
    task = case.task
    examples = task.sample(40 * COUNT, 6)
    guessed = estimate(task.scores(case.guess(examples, 0), examples)[task.main_score])
    expected = case.chance(examples)
    # A score of rare hits can have no spread in the sample: then the binomial's.
    spread = max(guessed.standard_error, (abs(expected) * (1 - min(1, abs(expected))) / guessed.count) ** 0.5)
    assert abs(guessed.mean - expected) <= STANDARD_ERRORS * spread, f"{guessed} is not {expected}"
    assert guessed.mean < 1.0


LAWS = laws_in(globals(), TaskCase)
