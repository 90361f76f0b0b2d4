"""Attention profiles: where one block of attention, or of memories, looks, within its trained length and beyond."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tessera.papers.attention_profiles import figure, report
from tessera.papers.attention_profiles.measure import train_and_measure
from tessera.papers.attention_profiles.settings import BUDGETS, MODELS, ProfileSettings
from tessera.papers.experiment import EXPERIMENTS, Experiment, Record, Run, RunContext, RunSelection


class AttentionProfiles(Experiment):
    """Memory Mosaics, figures 14 to 16."""

    title = "Attention profiles: where one block looks"
    source = "Memory Mosaics, appendix D, figures 14 to 16"
    settings = ProfileSettings
    models = tuple(MODELS)

    def runs(self, selection: RunSelection) -> list[Run]:
        """Every model, seed by seed."""
        budget = BUDGETS[selection.budget]
        names = self.select_models("reproduce attention_profiles", selection)
        return [budget.run(name, seed) for seed in range(selection.seeds or budget.seeds) for name in names]

    def execute(self, run: Run, context: RunContext) -> dict[str, Any]:
        """Train as the recipe says, then measure."""
        return train_and_measure(run.configuration, context)

    def tables(self, records: Mapping[str, Record]) -> dict[str, str]:
        """See `report.py`."""
        return report.tables(records)

    def plot(self, records: Mapping[str, Record], path: Path) -> None:
        """See `figure.py`."""
        figure.draw(records, path)


EXPERIMENTS.add("attention_profiles", AttentionProfiles())
