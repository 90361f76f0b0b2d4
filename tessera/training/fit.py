"""How experiments train: a model and a loss alone, or a curriculum, whose stages start from the best weights so far."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from tessera.recipes.sections import Curriculum, Recipe, Stage
from tessera.training import loop
from tessera.training.checkpoint import Checkpoints, TrainingProgress
from tessera.training.loop import Report, StagePlan, TrainingLog, unreported
from tessera.training.optimizer import FitOptions, scalar_parameters, stage_options
from tessera.training.training_data import TrainingData

__all__ = ["FitOptions", "fit", "known_scales"]


def fit(
    model: nn.Module,
    loss_at: Callable[[int], Tensor | Iterable[Tensor]],
    options: FitOptions,
    folder: Path,
    *,
    report: Report = unreported,
    validate: Callable[[], float] | None = None,
    name: str = "training",
    target: float = -math.inf,
    rate_factor: Callable[[int], float] = lambda step: 1.0,
) -> TrainingProgress:
    """Train `model` in place on `loss_at(step)`; with `validate` (lower is better) the best weights win.

    Both must depend on the step and the model alone: a killed run goes on from `folder / name` and ends with the same
    weights. See `StagePlan`.

    Raises:
        NotFinite: a loss, gradient or weight that is NaN or infinite.
    """
    plan = StagePlan(known_scales(model, options), loss_at, validate, target, rate_factor=rate_factor, name=name)
    (progress,) = loop.train_stages(model, [plan], Checkpoints(folder / name, model), ReportLog([plan], report))
    return progress


def known_scales(model: nn.Module, options: FitOptions) -> FitOptions:
    """Without `scalar_learning_rate_scales` that the model has no scalar for: kernels differ in what they learn."""
    known = {name.rpartition(".")[2] for name in scalar_parameters(model)}
    scales = {name: scale for name, scale in options.scalar_learning_rate_scales.items() if name in known}
    return replace(options, scalar_learning_rate_scales=scales)


class ReportLog(TrainingLog):
    """The `TrainingLog` of an experiment: tells `report` the share of all stages, by their `costs` (default: steps)."""

    def __init__(self, plans: list[StagePlan], report: Report, costs: list[float] | None = None) -> None:
        self.plans, self.report = plans, report
        self.costs = costs or [float(plan.options.steps) for plan in plans]
        self.number = 0

    def begin(self, number: int, progress: TrainingProgress) -> None:
        """See `TrainingLog`."""
        self.number = number

    def line(self, progress: TrainingProgress, learning_rate: float) -> None:
        """See `TrainingLog`."""
        plan = self.plans[self.number]
        done = sum(self.costs[: self.number]) + self.costs[self.number] * progress.steps / plan.options.steps
        self.report(done / sum(self.costs), f"{plan.name} loss {progress.loss:.3f}")


def train_curriculum(
    model: nn.Module,
    curriculum: Curriculum,
    options: FitOptions,
    folder: Path,
    loss_at: Callable[[Stage, int, int], Tensor],
    score: Callable[[Stage], float],
    report: Report = unreported,
) -> list[dict[str, Any]]:
    """Train `model` in place, stage after stage; returns one JSON-ready record per stage.

    Args:
        options: what all stages share; `steps` and `learning_rate` are the stage's.
        loss_at: the loss of (stage, its number, step); it must depend on these and the model alone.
        score: of a stage, at most 1, higher is better.
        report: hears the share of all stages, where a step costs in proportion to its length.
    """

    def missing(stage: Stage) -> float:
        return 1.0 - score(stage)

    options = known_scales(model, options)
    plans = [
        StagePlan(
            replace(options, steps=stage.steps, learning_rate=stage.learning_rate),
            partial(loss_at, stage, number),
            partial(missing, stage),
            target=_target(stage),
            name=f"stage {number + 1}",
        )
        for number, stage in enumerate(curriculum.stages)
    ]
    return _records(model, curriculum.stages, plans, folder, report)


def train_recipe_stages(
    model: nn.Module, recipe: Recipe, data: TrainingData, folder: Path, report: Report
) -> list[dict[str, Any]]:
    """Train `model` through the recipe's curriculum, with checkpoints in `folder` alone; the records of its stages."""
    return _records(model, recipe.training.curriculum, stage_plans(recipe, model, data), folder, report)


def stage_plans(
    recipe: Recipe,
    model: nn.Module,
    data: TrainingData,
    validated: Callable[[dict[str, float]], object] = lambda numbers: None,
    name: str = "",
) -> list[StagePlan]:
    """The stages of a recipe; `validated` hears the numbers of every validation, errors begin with `name`."""

    def validate(stage: Stage) -> float | None:
        numbers = data.validation(model, stage)
        validated(numbers)
        return 1.0 - numbers["score"] if "score" in numbers else None

    section = recipe.training
    return [
        StagePlan(
            stage_options(section, stage),
            partial(data.losses, model, stage, number),
            partial(validate, stage),
            target=_target(stage),
            begin=partial(data.begin, model, stage),
            name=": ".join([name] * bool(name) + [f"stage {number + 1}"] * bool(section.curriculum or not name)),
        )
        for number, stage in enumerate(section.stages)
    ]


def _records(
    model: nn.Module, stages: Sequence[Stage], plans: list[StagePlan], folder: Path, report: Report
) -> list[dict[str, Any]]:
    log = ReportLog(plans, report, [stage.cost for stage in stages])
    trained = loop.train_stages(model, plans, Checkpoints(folder, model), log)
    return [_record(stage, progress) for stage, progress in zip(stages, trained)]


def _record(stage: Stage, progress: TrainingProgress) -> dict[str, Any]:
    outcome = progress.outcome()
    return {
        **asdict(stage),
        **{key: outcome[key] for key in ("loss", "best_step", "seconds")},
        "steps_done": progress.steps,
        "best": 1.0 - progress.best,
        "checks": [(step, round(1.0 - value, 6)) for step, value in progress.checks],
    }


def _target(stage: Stage) -> float:
    """What the loop makes small is one minus the score; a target counts as reached in spite of rounding."""
    return 1.0 - stage.target + 1e-9
