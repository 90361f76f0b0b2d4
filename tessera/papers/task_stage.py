"""Training on samples of a task that are new at every step, easier forms of it before, scores on held-out samples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from tessera.evaluation.task_scores import score_batches
from tessera.models.small_models import ModelSize, build_small_model
from tessera.papers.experiment import RunContext
from tessera.tasks.task import Estimate, Task, TokenExamples
from tessera.training.fit import FitOptions, fit

EARLY_SEED = 1_000_003  # apart from the seeds of the training's steps
TEST_SEED = 1_000_003
TOKENS_AT_ONCE = 16_384


@dataclass(frozen=True)
class TaskStage:
    """One stage of training: `tasks` take turns step by step; the samples of step n have the seed `first_seed` + n."""

    name: str
    tasks: tuple[Task, ...]
    batch_size: int
    fit: FitOptions
    first_seed: int


@dataclass(frozen=True)
class EarlyStage:
    """A stage before the training itself, for models that do not leave guessing on the task as it is.

    `tasks` are the settings that differ from those of the training; without a `batch_size` it is the training's.
    """

    tasks: tuple[dict[str, Any], ...]
    fit: FitOptions
    batch_size: int | None = None

    def as_stage(self, number: int, tasks: tuple[Task, ...], batch_size: int, seed: int) -> TaskStage:
        """The early stage of this number on `tasks`; batch_size, seed: of the training that follows."""
        return TaskStage(f"stage-{number}", tasks, self.batch_size or batch_size, self.fit, seed + EARLY_SEED * number)


def train_on_tasks(
    model: PreTrainedModel,
    stages: Sequence[TaskStage],
    context: RunContext,
    test: Callable[[str], dict[str, Any]] = lambda name: {},
    validate: Callable[[], float] | None = None,
) -> dict[str, dict[str, Any]]:
    """Train `model` in place, stage by stage; returns by name what `fit` says of each and what `test(name)` adds."""
    outcomes, done, total = {}, 0, sum(stage.fit.steps * stage.batch_size for stage in stages)
    for stage in stages:

        def report(share: float, note: str, stage: TaskStage = stage, done: int = done) -> None:
            context.report((done + share * stage.fit.steps * stage.batch_size) / total, note)

        def loss(step: int, stage: TaskStage = stage) -> torch.Tensor:
            examples = stage.tasks[step % len(stage.tasks)].sample(stage.batch_size, stage.first_seed + step)
            return model(input_ids=examples.tokens.to(model.device), labels=examples.labels.to(model.device)).loss

        outcome = fit(model, loss, stage.fit, context.folder, report=report, validate=validate, name=stage.name)
        outcomes[stage.name] = outcome.outcome() | test(stage.name)
        done += stage.fit.steps * stage.batch_size
    return outcomes


def scores_of_memories(model: PreTrainedModel, score: Callable[[], Any]) -> dict[str, Any]:
    """`score()` as "scores"; of v2 also "without_long_term_memory", with its long-term memories switched off."""
    outcome = {"scores": score()}
    if hasattr(model, "disable_long_term_memory"):
        model.disable_long_term_memory()
        outcome["without_long_term_memory"] = score()
        model.enable_long_term_memory()
    return outcome


def small_model(settings: Any, name: str, **sizes: Any) -> PreTrainedModel:
    """The small model called `name` from the seed of `settings`, with those of its fields that are sizes of models."""
    known = {field.name for field in fields(ModelSize)} & {field.name for field in fields(settings)} - sizes.keys()
    return build_small_model(name, settings.seed, **{field: getattr(settings, field) for field in known}, **sizes)


@torch.no_grad()
def held_out_scores(
    model: nn.Module, task: Task, width: int, test_tokens: int, between: tuple[int, int], device: str
) -> dict[str, Estimate]:
    """Each score of `task` on examples of its test split, of `width` tokens: small batches of long rows.

    There are as many as `test_tokens` hold, `between` the fewest and the most.
    """
    fewest, most = between
    count, at_once = max(fewest, min(most, test_tokens // width)), max(1, TOKENS_AT_ONCE // width)
    firsts = enumerate(range(0, count, at_once), TEST_SEED)
    batches = (task.sample(min(at_once, count - first), seed, "test") for seed, first in firsts)

    def predictions(examples: TokenExamples) -> torch.Tensor:
        return model(input_ids=examples.tokens.to(device), use_cache=False).logits.float()

    return score_batches(task, batches, predictions)
