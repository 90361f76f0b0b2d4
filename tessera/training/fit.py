"""The loop of `tessera.training.loop` for a model and a loss alone, as experiments train."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from tessera.training.checkpoint import Checkpoints, TrainingProgress
from tessera.training.loop import Report, StagePlan, train_stages, unreported
from tessera.training.optimizer import FitOptions, scalar_parameters

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
    weights. See `StagePlan`. `report(share, note)` hears how far it is, the share in [0, 1].

    Raises:
        NotFinite: a loss, gradient or weight that is NaN or infinite.
    """
    plan = StagePlan(known_scales(model, options), loss_at, validate, target, rate_factor=rate_factor, name=name)
    (progress,) = train_stages(model, [plan], Checkpoints(folder / name, model), ReportLog([plan], report))
    return progress


def known_scales(model: nn.Module, options: FitOptions) -> FitOptions:
    """Without `scalar_learning_rate_scales` that the model has no scalar for: kernels differ in what they learn."""
    known = {name.rpartition(".")[2] for name in scalar_parameters(model)}
    scales = {name: scale for name, scale in options.scalar_learning_rate_scales.items() if name in known}
    return replace(options, scalar_learning_rate_scales=scales)


class ReportLog:
    """The `TrainingLog` of an experiment: tells `report` the share of all stages, by their `costs` (default: steps)."""

    def __init__(self, plans: list[StagePlan], report: Report, costs: list[float] | None = None) -> None:
        self.plans, self.report = plans, report
        self.costs = costs or [float(plan.options.steps) for plan in plans]
        self.number = 0

    def begin(self, number: int, progress: TrainingProgress) -> None:
        """See `TrainingLog`."""
        self.number = number

    def step(self, progress: TrainingProgress) -> None:
        """See `TrainingLog`."""

    def line(self, progress: TrainingProgress, learning_rate: float) -> None:
        """See `TrainingLog`."""
        plan = self.plans[self.number]
        done = sum(self.costs[: self.number]) + self.costs[self.number] * progress.steps / plan.options.steps
        self.report(done / sum(self.costs), f"{plan.name} loss {progress.loss:.3f}")
