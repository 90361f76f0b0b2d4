"""The tables of attention profiles: the profiles in a few numbers, and peaks against leaks."""

from collections.abc import Mapping
from typing import NamedTuple

import torch

from tessera.papers.attention_profiles.settings import MODELS, ProfileSettings
from tessera.papers.experiment import Record
from tessera.papers.tables import markdown, mean_of, settings_table, with_error

# Memory Mosaics, section 7 and appendix D.
PUBLISHED = {
    "width": 768,
    "heads": 12,
    "tokens of a training sequence": 512,
    "tokens seen in training": 80_000 * 512 * 512,
    "texts of a profile": 5000,
}


class Head(NamedTuple):
    """A mosaic's head: its leak rate lambda and the width of its recent peak in tokens (None: it has no peak)."""

    seed: int
    head: int
    leak: float
    width: float | None


def by_model(records: Mapping[str, Record]) -> dict[str, list[Record]]:
    """The records of each model's seeds, in the order of `MODELS`."""
    groups = {name: [one for one in records.values() if one.configuration.model == name] for name in MODELS}
    return {name: seeds for name, seeds in groups.items() if seeds}


def heads(records: Mapping[str, Record]) -> list[Head]:
    """Every head of every seed's mosaic, at the trained length, slowest leak last."""
    rows = []
    for record in by_model(records).get("mosaic", []):
        settings = record.configuration
        widths = record.outcome["lengths"][str(settings.context)]["widths"]
        pairs = enumerate(zip(record.outcome["leaks"], widths, strict=True))
        rows += [Head(settings.seed, number, leak, width) for number, (leak, width) in pairs]
    return sorted(rows, key=lambda row: row.leak)


def rank_correlation(one: list[float], other: list[float]) -> float:
    """Spearman's: the correlation of ranks, ties sharing their mean rank. NaN for fewer than two or equal values."""
    ranks = torch.tensor([_ranks(one), _ranks(other)], dtype=torch.float64)
    if ranks.shape[1] < 2 or (ranks.std(1) == 0).any():
        return float("nan")
    return float(torch.corrcoef(ranks)[0, 1])


def _ranks(values: list[float]) -> list[float]:
    return [sum(other < value for other in values) + (values.count(value) - 1) / 2 for value in values]


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """The profiles, the heads, settings."""
    groups = by_model(records)
    made = {"Profiles": _profiles(groups), "Recent peak and leak": _peaks(records), "Settings": _settings(groups)}
    return {heading: table for heading, table in made.items() if table}


def _profiles(groups: Mapping[str, list[Record]]) -> str:
    rows = []
    for name, seeds in groups.items():
        lengths = sorted({int(length) for one in seeds for length in one.outcome["lengths"]})
        for length in lengths:
            measured = [one.outcome["lengths"][str(length)] for one in seeds]
            means = {key: [one["mean"][key] for one in measured] for key in measured[0]["mean"]}
            even = means["even"][0]
            cells = [_cell([one["loss"] for one in measured], ".3f"), _cell(means["first"], ".2f")]
            cells += [_cell(means["newest"], ".3f"), _cell(means["unevenness"], ".2f"), _cell(means["beyond"], ".3f")]
            rows.append([MODELS[name], length, len(seeds), *cells, "" if even is None else f"{even:.3f}"])
    headings = ["model", "tokens", "seeds", "loss at the end, nats", "first token, times the mean weight"]
    headings += ["share of the newest eighth of a context", "unevenness between"]
    headings += ["share beyond the trained length", "if even"]
    return markdown(headings, rows)


def _cell(values: list[float | None], form: str) -> str:
    numbers = [value for value in values if value is not None]
    return with_error(mean_of(numbers), form) if numbers else ""


def _peaks(records: Mapping[str, Record]) -> str:
    every = heads(records)
    if not every:
        return ""
    rows = [
        [head.seed, head.head, f"{head.leak:.3f}", "no peak" if head.width is None else f"{head.width:.1f}"]
        for head in every
    ]
    with_peak = [(head.leak, head.width) for head in every if head.width is not None]
    correlation = rank_correlation([leak for leak, _ in with_peak], [width for _, width in with_peak])
    rows.append(["all", f"{len(with_peak)} with a peak", "rank correlation", f"{correlation:.2f}"])
    return markdown(["seed", "head", "leak rate λ", "width of the recent peak, tokens"], rows)


def _settings(groups: Mapping[str, list[Record]]) -> str:
    settings: ProfileSettings = next(iter(groups.values()))[0].configuration
    recipe = settings.read_recipe()
    lengths = next(iter(groups.values()))[0].outcome["lengths"]
    ours = {
        "width": recipe.model["hidden_size"],
        "heads": recipe.model["num_heads"],
        "tokens of a training sequence": settings.context,
        "tokens seen in training": recipe.training.steps * recipe.training.batch_size * settings.context,
        "peak learning rate": recipe.training.learning_rate,
        "texts of a profile": max(one["texts"] for one in lengths.values()),
    }
    return settings_table(ours, PUBLISHED)
