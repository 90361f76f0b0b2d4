"""Every registered task keeps the contract, and the contract can be broken."""

import dataclasses

import pytest
import torch

from tessera.ops.linear_cross_entropy import IGNORED
from tessera.tasks.task import TASKS, Task, TokenExamples, generator_of
from tessera.testing.tasks import LAWS, TaskCase, check_task
from tests.covering import some
from tests.short_books import beginnings, short_books  # noqa: F401 (fixtures)
from tests.tasks.cases import VARIANTS, case_of

pytestmark = pytest.mark.usefixtures("short_books")

CASES = [(name, variant) for name in TASKS for variant in VARIANTS[name]]


# By default the last variant of each task keeps all laws, the others those that look at few examples.
@some(
    ("name", "task", "law"),
    [(name, task, law) for name, task in CASES for law in LAWS],
    by_default=lambda name, task, law: law in ("tokens", "oracle") or task == VARIANTS[name][-1],
    ids=lambda part: str(part)[:60],
)
def test_contract(name, task, law):
    LAWS[law](case_of(task))


class Copying(Task):
    """The last token repeats the first: a task that keeps the contract."""

    summary, source, main_score = "copy", "none", "exact_match"

    def sample(self, count, seed, split="train"):
        tokens = torch.randint(8, (count, 5), generator=generator_of(self, seed, split))
        tokens[:, -1] = tokens[:, 0]
        return TokenExamples(tokens, tokens.masked_fill(torch.arange(5) < 4, IGNORED))

    def scores(self, predictions, examples):
        return {"exact_match": (predictions[:, -2].argmax(-1) == examples.tokens[:, -1]).double()}


class CopyingCase(TaskCase):
    def oracle(self, examples):
        return torch.nn.functional.one_hot(examples.tokens[:, :1].expand(-1, 5), 8).double()

    def guess(self, examples, seed):
        return torch.rand(*examples.tokens.shape, 8, generator=torch.Generator().manual_seed(seed))

    def chance(self, examples):
        return 1 / 8


class GlobalRandomness(Copying):
    def sample(self, count, seed, split="train"):
        tokens = torch.randint(8, (count, 5))
        return TokenExamples(tokens, tokens)


class OneSplit(Copying):
    def sample(self, count, seed, split="train"):
        return super().sample(count, seed)


class SharedAutomata(CopyingCase):
    def held_apart(self, examples):
        return {0}


class ShiftedLabels(Copying):
    def sample(self, count, seed, split="train"):
        examples = super().sample(count, seed, split)
        return dataclasses.replace(examples, labels=examples.labels.roll(1, 1))


class AnythingScores(Copying):
    def scores(self, predictions, examples):
        return {"exact_match": torch.ones(len(examples))}


class OneScoreForAll(Copying):
    def scores(self, predictions, examples):
        right = super().scores(predictions, examples)["exact_match"]
        return {"exact_match": right.mean().expand(right.shape)}


class SeedsOverlap(Copying):
    def sample(self, count, seed, split="train"):
        tokens = torch.cat([super(SeedsOverlap, self).sample(1, seed + i, split).tokens for i in range(count)])
        return TokenExamples(tokens, tokens.masked_fill(torch.arange(5) < 4, IGNORED))


class WrongOracle(CopyingCase):
    def oracle(self, examples):
        return torch.zeros(*examples.tokens.shape, 8)


class WrongChance(CopyingCase):
    def chance(self, examples):
        return 1 / 5


@pytest.mark.parametrize(
    "task", [GlobalRandomness, OneSplit, ShiftedLabels, AnythingScores, OneScoreForAll, SeedsOverlap]
)
def test_wrong_tasks_are_rejected(task):
    check_task(CopyingCase(Copying()))
    with pytest.raises(AssertionError):
        check_task(CopyingCase(task()))


@pytest.mark.parametrize("case", [SharedAutomata, WrongOracle, WrongChance])
def test_wrong_cases_are_rejected(case):
    with pytest.raises(AssertionError):
        check_task(case(Copying()))
