"""Scores of RegBench's runs over seeds and test problems."""

from collections import defaultdict
from collections.abc import Mapping
from statistics import mean, stdev
from typing import NamedTuple

from tessera.experiments.experiment import Record
from tessera.experiments.regbench.figure import NAMES


class Cell(NamedTuple):
    """A score in per cent: mean over seeds, standard error over seeds (None: one seed) and over examples."""

    mean: float
    over_seeds: float | None
    over_examples: float

    @property
    def standard_error(self) -> float:
        """Over seeds where there are some, else over examples."""
        return self.over_examples if self.over_seeds is None else self.over_seeds

    def __str__(self) -> str:
        seeds = "one seed" if self.over_seeds is None else f"{self.over_seeds:.1f}"
        return f"{self.mean:.1f} ± {seeds} ± {self.over_examples:.1f}"


def best_records(runs: Mapping[str, Record]) -> dict[tuple[str, int], list[Record]]:
    """For each model and number of problems its runs, one per seed: the best of a search by validation loss."""
    found: dict[tuple[str, int], dict[int, Record]] = defaultdict(dict)
    for record in runs.values():
        asked = record.configuration
        name = f"{asked['model']} {asked['kernel']}".strip() + (f", {asked['label']}" if "label" in asked else "")
        seeds = found[name, asked["problems"]]
        other = seeds.get(asked["seed"])
        if other is None or record.outcome["training"]["best"] < other.outcome["training"]["best"]:
            seeds[asked["seed"]] = record
    order = [*NAMES, *sorted({model for model, _ in found} - set(NAMES))]
    keys = sorted(found, key=lambda key: (key[1], order.index(key[0])))
    return {key: [found[key][seed] for seed in sorted(found[key])] for key in keys}


def cell(records: list[Record], where: str, score: str) -> Cell:
    """One score of one model's seeds."""
    values = [record.outcome[where][score] for record in records]
    over_seeds = stdev([value["mean"] for value in values]) / len(values) ** 0.5 if len(values) > 1 else None
    return Cell(mean(v["mean"] for v in values), over_seeds, mean(v["standard_error"] for v in values))


def points(runs: Mapping[str, Record]) -> dict[str, dict[int, dict[str, tuple[float, float]]]]:
    """What the figure draws: mean and standard error of the held-out scores of each model's longest training."""
    found: dict[str, dict[int, dict[str, tuple[float, float]]]] = defaultdict(dict)
    for (model, problems), records in longest_trainings(best_records(runs)).items():
        cells = {score: cell(records, "held_out", score) for score in ("accuracy", "tvd")}
        found[model][problems] = {score: (one.mean, one.standard_error) for score, one in cells.items()}
    return dict(found)


def longest_trainings(best: Mapping[tuple[str, int], list[Record]]) -> dict[tuple[str, int], list[Record]]:
    """Of `best_records`, for each model without its label and number of problems the training of most steps."""
    longest: dict[tuple[str, int], list[Record]] = {}
    for (name, problems), records in best.items():
        place = name.split(",")[0], problems
        if place not in longest or _steps(records) >= _steps(longest[place]):
            longest[place] = records
    return longest


def _steps(records: list[Record]) -> int:
    return records[0].configuration["fit"]["steps"]
