"""Attention profiles: where one block of attention, or of memories, looks, within its trained length and beyond."""

from typing import Any

from tessera.papers.attention_profiles import figure, report
from tessera.papers.attention_profiles.measure import train_and_measure
from tessera.papers.attention_profiles.settings import BUDGETS, MODELS, ProfileSettings
from tessera.papers.catalogue import LIBRARY
from tessera.papers.experiment import Experiment, Run, RunContext, RunSelection


def plan(selection: RunSelection) -> list[Run]:
    """Every model, seed by seed."""
    budget = BUDGETS[selection.budget]
    names = selection.models or MODELS
    return [budget.run(name, seed) for seed in range(selection.seeds or budget.seeds) for name in names]


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train as the recipe says, then measure."""
    return train_and_measure(run.configuration, context)


# Memory Mosaics, figures 14 to 16.
EXPERIMENT = Experiment(
    LIBRARY["attention_profiles"],
    settings=ProfileSettings,
    plan=plan,
    execute=execute,
    tables=report.tables,
    plot=figure.draw,
    models=tuple(MODELS),
)
