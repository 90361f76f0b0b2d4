"""Language models on stories: mosaic and transformer by depth, and every kernel."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tessera.papers.experiment import EXPERIMENTS, Experiment, Record, Run, RunContext, RunSelection
from tessera.papers.language_modeling import figure, report
from tessera.papers.language_modeling.settings import KERNELS, MODELS, LanguageSettings, runs_of
from tessera.papers.language_modeling.training import train_and_evaluate


class LanguageModeling(Experiment):
    """Memory Mosaics, figures 7 and 13; Sparse Attention as Compact Kernel Regression, figures 2 and 3."""

    title = "Language models by depth and kernel"
    source = "Memory Mosaics, section 7; Sparse Attention as Compact Kernel Regression, section 4.1"
    settings = LanguageSettings
    models = MODELS
    kernels = KERNELS
    takes_data = True

    def runs(self, selection: RunSelection) -> list[Run]:
        """Learning rates, the first seed of every depth, every kernel at one block, then the rest."""
        return runs_of(selection)

    def execute(self, run: Run, context: RunContext) -> dict[str, Any]:
        """Train as the recipe says, then evaluate on validation text."""
        return train_and_evaluate(run, context)

    def tables(self, records: Mapping[str, Record]) -> dict[str, str]:
        """See `report.py`."""
        return report.tables(records)

    def plot(self, records: Mapping[str, Record], path: Path) -> None:
        """See `figure.py`."""
        figure.draw(records, path)


EXPERIMENTS.add("language_modeling", LanguageModeling())
