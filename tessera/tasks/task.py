"""What a task is: examples and scores. It knows no model."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from tessera.base.errors import expect
from tessera.base.registry import Registry

SPLITS = ("train", "validation", "test")
# Of what a task tells apart by a number of its own, as a story by its facts: which tenths each split has.
SPLIT_TENTHS = {"train": range(8), "validation": range(8, 9), "test": range(9, 10)}


@dataclass(frozen=True)
class TokenExamples:
    """Sequences of tokens, and which of them are to be predicted.

    Attributes:
        tokens: integers (B, T). labels: (B, T), the token where its prediction counts, -100 elsewhere; not shifted, as
            Hugging Face models take them. details: what the task's scores know besides.
    """

    tokens: Tensor
    labels: Tensor
    details: Any = field(default=None, compare=False)

    def __len__(self) -> int:
        return len(self.tokens)


class Estimate(NamedTuple):
    """A mean over `count` independent examples and its standard error."""

    mean: float
    standard_error: float
    count: int  # type: ignore[assignment]  # not the method of tuples


@dataclass(frozen=True)
class Task(ABC):
    """One task with its settings (a frozen dataclass); registered in `TASKS`, it is listed and tested.

    A prediction is what a model makes of examples: for token tasks logits (B, T, V), those at position t about token
    t + 1. `scores` are per example, and 1 is the best value of `main_score`.
    """

    summary: ClassVar[str]
    source: ClassVar[str]
    main_score: ClassVar[str]
    length_setting: ClassVar[str] = "length"

    def at_length(self, length: int) -> Self:
        """The same task with examples of another length, which is counted as the setting `length_setting` counts."""
        return replace(self, **{self.length_setting: length})

    @abstractmethod
    def sample(self, count: int, seed: int, split: str = "train") -> Any:
        """`count` examples. The same settings, seed and split give the same bytes, whatever the global random state."""

    @abstractmethod
    def scores(self, predictions: Any, examples: Any) -> dict[str, Tensor]:
        """Each score of each example, (B,); NaN where an example has nothing to score."""

    def _require(self, name: str, is_met: bool, needed: str, advice: str = "") -> None:
        """Raise `TesseraError` with the setting `name`, its value and what is `needed` of it, unless that `is_met`."""
        value = getattr(self, name)
        got = repr(value) if isinstance(value, str) else value
        expect(is_met, type(self).__name__, name, needed, got, advice)

    def sources(self, examples: Any) -> list[int]:
        """B numbers of what the examples were drawn from, where many come of few: errors are over these, if there are
        several (`estimate`); empty: all are new."""
        return []


TASKS: Registry[type[Task]] = Registry("task", "tessera.tasks", filled_by="tessera.papers.tasks")


def expect_split(task: Task, split: str) -> None:
    """Raise `TesseraError` unless there is such a split."""
    expect(split in SPLITS, type(task).__name__, "split", "be one of " + ", ".join(SPLITS), repr(split))


def generator_of(task: Task, seed: int, split: str) -> torch.Generator:
    """A generator of its own for each task, seed and split."""
    expect_split(task, split)
    return torch.Generator().manual_seed((seed * len(SPLITS) + SPLITS.index(split)) * 1_000_003 + 17)


def estimate(values: Tensor, groups: Tensor | None = None) -> Estimate:
    """Mean and standard error of one score over examples; NaNs are left out.

    With `groups`, numbers of what examples share, the error is that over groups, which alone are independent then: with
    d the differences from the mean, its square is G / (G - 1) times the sum over groups of (sum d)^2 / n^2.
    """
    known = ~values.isnan()
    values = values[known].double()
    of_groups = torch.arange(len(values)) if groups is None else groups[known].unique(return_inverse=True)[1]
    sums = torch.zeros(len(values), dtype=torch.double).index_add_(0, of_groups, values - values.mean())
    count = len(of_groups.unique())
    error = (sums.square().sum() * count / (count - 1)).sqrt().item() / len(values) if count > 1 else float("nan")
    return Estimate(values.mean().item(), error, count)
