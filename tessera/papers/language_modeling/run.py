"""Language models on stories: mosaic and transformer by depth, and every kernel."""

from typing import Any

from tessera.papers.catalogue import LIBRARY
from tessera.papers.experiment import Experiment, Run, RunContext, RunSelection
from tessera.papers.language_modeling import figure, report
from tessera.papers.language_modeling.settings import KERNELS, MODELS, LanguageSettings, runs_of
from tessera.papers.language_modeling.training import train_and_evaluate


def plan(selection: RunSelection) -> list[Run]:
    """Learning rates, the first seed of every depth, every kernel at one block, then the rest."""
    return runs_of(selection)


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train as the recipe says, then evaluate on validation text."""
    return train_and_evaluate(run, context)


# Memory Mosaics, figures 7 and 13; Sparse Attention as Compact Kernel Regression, figures 2 and 3.
EXPERIMENT = Experiment(
    LIBRARY["language_modeling"],
    settings=LanguageSettings,
    plan=plan,
    execute=execute,
    tables=report.tables,
    plot=figure.draw,
    models=MODELS,
    kernels=KERNELS,
    takes_data=True,
)
