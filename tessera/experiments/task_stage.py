"""A training on samples of a task that are new at every step, and easier forms of the task before it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from tessera.experiments.experiment import RunContext
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.tasks.task import Task
from tessera.training.fit import FitOptions, fit

VALIDATION_SAMPLES = 64
EARLY_SEED = 1_000_003  # apart from the seeds of the training's steps
PADDING = 0  # of every task of tokens


@dataclass(frozen=True)
class TaskStage:
    """One stage of training: `tasks` take turns step by step.

    Attributes:
        name: of its checkpoint. first_seed: of the samples of step 0; step n has this plus n. target, all_words: see
            `EarlyStage`.
    """

    name: str
    tasks: tuple[Task, ...]
    batch_size: int
    fit: FitOptions
    first_seed: int
    target: float | None = None
    all_words: bool = False


@dataclass(frozen=True)
class EarlyStage:
    """A stage before the training itself, for models that do not leave guessing on the task as it is.

    Attributes:
        tasks: what takes turns step by step, each as the settings of the task that differ from those of the training.
        fit: of this stage. batch_size: None: of the training. target: the stage ends once so large a share of its
            validation is answered right, looked at as often as `fit` says; None: it takes all its steps. all_words: the
            loss counts every word, as in language modelling, and not the answers alone.
    """

    tasks: tuple[dict[str, Any], ...]
    fit: FitOptions
    batch_size: int | None = None
    target: float | None = None
    all_words: bool = False

    def as_stage(self, number: int, tasks: tuple[Task, ...], batch_size: int, seed: int) -> TaskStage:
        """The `number`-th early stage (from 1) on `tasks`; batch_size, seed: of the training that follows."""
        seed += EARLY_SEED * number
        batch_size = self.batch_size or batch_size
        return TaskStage(f"stage-{number}", tasks, batch_size, self.fit, seed, self.target, self.all_words)


def train_stages(
    model: PreTrainedModel,
    stages: Sequence[TaskStage],
    context: RunContext,
    test: Callable[[str], dict[str, Any]] = lambda name: {},
) -> dict[str, dict[str, Any]]:
    """Train `model` in place, stage by stage; returns by name what `fit` says of each and what `test(name)` adds."""
    outcomes, done = {}, 0.0
    total = sum(_cost(stage) for stage in stages)
    for stage in stages:
        report = partial(_report_part, context, done / total, _cost(stage) / total)
        outcome = fit(
            model, partial(_loss, model, stage), stage.fit, context.folder, report=report, name=stage.name,
            validate=None if stage.target is None else partial(_share_wrong, model, stage),
            target=-math.inf if stage.target is None else 1 - stage.target,
        )  # fmt: skip
        outcomes[stage.name] = outcome.outcome() | test(stage.name)
        done += _cost(stage)
    return outcomes


def _cost(stage: TaskStage) -> float:
    return stage.fit.steps * stage.batch_size


def _loss(model: PreTrainedModel, stage: TaskStage, step: int) -> torch.Tensor:
    examples = stage.tasks[step % len(stage.tasks)].sample(stage.batch_size, stage.first_seed + step)
    tokens = examples.tokens.to(model.device)
    labels = tokens.masked_fill(tokens == PADDING, IGNORED) if stage.all_words else examples.labels.to(model.device)
    return model(input_ids=tokens, labels=labels).loss


def _share_wrong(model: PreTrainedModel, stage: TaskStage) -> float:
    """Of the validation samples of the stage's tasks."""
    scores = []
    for task in stage.tasks:
        examples = task.sample(VALIDATION_SAMPLES, 0, "validation")
        logits = model(input_ids=examples.tokens.to(model.device)).logits
        scores.append(task.scores(logits.float(), examples)[task.main_score].double().mean().item())
    return 1 - sum(scores) / len(scores)


def _report_part(context: RunContext, before: float, part: float, share: float, note: str) -> None:
    context.report(before + part * share, note)
