"""ARMT on language: does what a memory keeps of earlier segments lower the loss of later ones?"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tessera.papers.armt_language import figure, report
from tessera.papers.armt_language.settings import BUDGETS, MODELS, SegmentSettings
from tessera.papers.armt_language.training import train_and_measure
from tessera.papers.experiment import EXPERIMENTS, Experiment, Record, Run, RunContext, RunSelection


class ArmtLanguage(Experiment):
    """The figure of the ARMT paper's appendix on language, on stories, and on novels."""

    title = "ARMT on language: bits per byte of each segment"
    source = "Associative Recurrent Memory Transformer, appendix on language modeling"
    settings = SegmentSettings
    models = MODELS

    def runs(self, selection: RunSelection) -> list[Run]:
        """Base by base, seed by seed; the models of a base start from the same weights."""
        budget = BUDGETS[selection.budget]
        names = self.select_models("reproduce armt_language", selection)
        seeds = range(selection.seeds or budget.seeds)
        return [budget.run(name, base, seed) for seed in seeds for base in budget.bases for name in names]

    def execute(self, run: Run, context: RunContext) -> dict[str, Any]:
        """Train the base unless another run has, train what starts from it, then measure."""
        return train_and_measure(run.configuration, context)

    def tables(self, records: Mapping[str, Record]) -> dict[str, str]:
        """See `report.py`."""
        return report.tables(records)

    def plot(self, records: Mapping[str, Record], path: Path) -> None:
        """See `figure.py`."""
        figure.draw(records, path)


EXPERIMENTS.add("armt_language", ArmtLanguage())
