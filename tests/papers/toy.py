"""The smallest experiment, whose runs can be told to fail: CONTRIBUTING.md shows it."""

from dataclasses import dataclass, replace

import torch
from torch import nn

from tessera.base.errors import TesseraError
from tessera.papers.curves import draw_curve, panels
from tessera.papers.experiment import About, Experiment, Run
from tessera.papers.records import grouped, mean_of
from tessera.papers.tables import markdown, with_error
from tessera.training.fit import FitOptions, fit

EXECUTED, FAILING = [], set()  # keys of runs


@dataclass(frozen=True)
class ToySettings:
    """One training. `model`: "straight" or "steep"."""

    fit: FitOptions
    model: str = ""
    seed: int = 0


BUDGETS = {"smoke": ToySettings(FitOptions(2, 0.1)), "cpu": ToySettings(FitOptions(5, 0.1))}
MODELS = ("straight", "steep")


def plan(selection):
    """Seed by seed, both models."""
    settings = [
        replace(BUDGETS[selection.budget], model=model, seed=seed)
        for seed in range(selection.seeds or 2)
        for model in selection.models or MODELS
    ]
    return [Run(f"{one.model}/seed {one.seed}", one) for one in settings]


def execute(run, context):
    """Fit a line."""
    EXECUTED.append(run.key)
    if run.key in FAILING:
        raise TesseraError(f"{run.key}: failed")
    torch.manual_seed(run.configuration.seed)
    model = nn.Linear(1, 1)
    return fit(model, lambda step: loss(model, step), run.configuration.fit, context.folder).outcome()


def loss(model, step):
    """Of points on a line."""
    x = torch.rand(16, 1, generator=torch.Generator().manual_seed(step))
    return (model(x) - 2 * x).square().mean()


def losses(records):
    """By model, over seeds."""
    groups = grouped(records, lambda settings: settings.model, MODELS)
    return {model: mean_of([record.outcome["loss"] for record in seeds]) for model, seeds in groups.items()}


def tables(records):
    """The losses of both models."""
    return {
        "Losses": markdown(["model", "loss"], [[model, with_error(mean)] for model, mean in losses(records).items()])
    }


def plot(records, path):
    """The same as points."""
    with panels(path, 4, 3) as (axis,):
        for place, (model, point) in enumerate(losses(records).items()):
            draw_curve(axis, {place: point}, model)


EXPERIMENT = Experiment(About("A line", "none"), ToySettings, plan, execute, tables, plot, models=MODELS)
