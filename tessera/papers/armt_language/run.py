"""ARMT on language: does what a memory keeps of earlier segments lower the loss of later ones?"""

from typing import Any

from tessera.papers.armt_language import figure, report
from tessera.papers.armt_language.settings import BUDGETS, MODELS, SegmentSettings
from tessera.papers.armt_language.training import train_and_measure
from tessera.papers.catalogue import LIBRARY
from tessera.papers.experiment import Experiment, Run, RunContext, RunSelection


def plan(selection: RunSelection) -> list[Run]:
    """Base by base, seed by seed; the models of a base start from the same weights."""
    budget = BUDGETS[selection.budget]
    names = selection.models or MODELS
    seeds = range(selection.seeds or budget.seeds)
    return [budget.run(name, base, seed) for seed in seeds for base in budget.bases for name in names]


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train the base unless another run has, train what starts from it, then measure."""
    return train_and_measure(run.configuration, context)


# The figure of the ARMT paper's appendix on language, on stories, and on novels.
EXPERIMENT = Experiment(
    LIBRARY["armt_language"],
    settings=SegmentSettings,
    plan=plan,
    execute=execute,
    tables=report.tables,
    plot=figure.draw,
    models=MODELS,
)
