"""Attention profiles: the profiles and a few numbers of them, and peaks against leaks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from tessera.papers.attention_profiles.run import MODELS, ProfileSettings, execute, plan
from tessera.papers.curves import new_figure
from tessera.papers.experiment import LIBRARY, Experiment, Record
from tessera.papers.tables import SettingsRows, by_model, markdown, mean_of, settings_of, with_error

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Here, and in Memory Mosaics, section 7 and appendix D.
SETTINGS: SettingsRows = {
    "width": ("recipe.model.hidden_size", 768),
    "heads": ("recipe.model.num_heads", 12),
    "tokens of a training sequence": ("context", 512),
    "tokens seen in training": ("tokens", 80_000 * 512 * 512),
    "peak learning rate": ("recipe.training.learning_rate", None),
    "texts of a profile": ("sequences", 5000),
}
LEAST = 1e-5  # smaller weights are drawn there


class Head(NamedTuple):
    """A mosaic's head: its leak rate lambda and the width of its recent peak in tokens (None: it has no peak)."""

    seed: int
    head: int
    leak: float
    width: float | None


def heads(records: Mapping[str, Record]) -> list[Head]:
    """Every head of every seed's mosaic, at the trained length, slowest leak last."""
    rows = []
    for record in by_model(records, MODELS).get("mosaic", []):
        settings = record.configuration
        widths = record.outcome["lengths"][str(settings.context)]["widths"]
        pairs = enumerate(zip(record.outcome["leaks"], widths, strict=True))
        rows += [Head(settings.seed, number, leak, width) for number, (leak, width) in pairs]
    return sorted(rows, key=lambda row: row.leak)


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's: the correlation of ranks, ties sharing their mean rank. NaN for fewer than two or equal values."""
    ranks = torch.tensor([_ranks(first), _ranks(second)], dtype=torch.float64)
    if ranks.shape[1] < 2 or (ranks.std(1) == 0).any():
        return float("nan")
    return float(torch.corrcoef(ranks)[0, 1])


def _ranks(values: Sequence[float]) -> list[float]:
    return [sum(other < value for other in values) + (values.count(value) - 1) / 2 for value in values]


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """The profiles, the heads, settings."""
    made = {
        "Profiles": _profiles(records),
        "Recent peak and leak": _peaks(records),
        "Settings": settings_of(records.values(), SETTINGS),
    }
    return {heading: table for heading, table in made.items() if table}


def _profiles(records: Mapping[str, Record]) -> str:
    columns = {
        "loss at the end, nats": ("loss", ".3f"),
        "first token, times the mean weight": ("first", ".2f"),
        "share of the newest eighth of a context": ("newest", ".3f"),
        "unevenness between": ("unevenness", ".2f"),
        "share beyond the trained length": ("beyond", ".3f"),
        "if even": ("even", ".3f"),
    }
    rows = []
    for name, seeds in by_model(records, MODELS).items():
        for length in sorted(seeds[0].outcome["lengths"], key=int):
            rows.append([MODELS[name], length, len(seeds)])
            for quantity, form in columns.values():
                of_seeds = seeds[:1] if quantity == "even" else seeds  # which is the same for all seeds
                measured = [record.outcome["lengths"][length] for record in of_seeds]
                values = [{"loss": of_seed["loss"], **of_seed["mean"]}[quantity] for of_seed in measured]
                numbers = [value for value in values if value is not None]
                rows[-1].append(with_error(mean_of(numbers), form) if numbers else "")
    return markdown(["model", "tokens", "seeds", *columns], rows)


def _peaks(records: Mapping[str, Record]) -> str:
    every = heads(records)
    rows = [
        [head.seed, head.head, f"{head.leak:.3f}", "no peak" if head.width is None else f"{head.width:.1f}"]
        for head in every
    ]
    with_peak = [(head.leak, head.width) for head in every if head.width is not None]
    correlation = rank_correlation([leak for leak, _ in with_peak], [width for _, width in with_peak])
    rows.append(["all", f"{len(with_peak)} with a peak", "rank correlation", f"{correlation:.2f}"])
    return markdown(["seed", "head", "leak rate λ", "width of the recent peak, tokens"], rows) if every else ""


def plot(records: Mapping[str, Record], path: Path) -> None:
    """The first seed of each model: rows are lengths, columns models; below, peaks against leaks of every head."""
    from matplotlib.ticker import NullLocator

    groups = {name: seeds[0] for name, seeds in by_model(records, MODELS).items()}
    lengths = sorted({int(length) for record in groups.values() for length in record.outcome["lengths"]})
    figure = new_figure(3.6 * len(MODELS), 3.0 * (len(lengths) + 1))
    profiles, peaks = figure.subfigures(2, 1, squeeze=False, height_ratios=[len(lengths), 1])[:, 0]
    axes = profiles.subplots(len(lengths), len(MODELS), sharey=True, squeeze=False)
    for row, length in zip(axes, lengths):
        for axis, name in zip(row, MODELS):
            _draw_profile(axis, groups.get(name), length, f"{MODELS[name]}, {length} tokens")
    axes[0, 0].set(yscale="log", ylim=(LEAST, 1.3))
    axes[0, 0].yaxis.set_minor_locator(NullLocator())  # minor ticks of ten axes take seconds
    _draw_peaks(peaks.subplots(), heads(records))
    profiles.suptitle("Weight of the last token on each position: mean over texts; lines are heads, dotted their mean")
    figure.savefig(path, dpi=110)


def _draw_profile(axis: "Axes", record: Record | None, length: int, title: str) -> None:
    axis.set_title(title, fontsize=9)
    measured = None if record is None else record.outcome["lengths"].get(str(length))
    if record is None or measured is None:
        axis.text(0.5, 0.5, "not measured" if record is None else "no positions beyond the trained", ha="center")
        axis.set_axis_off()
        return
    for weights in measured["profile"]:
        axis.plot([max(weight, LEAST) for weight in weights], lw=0.8)
    mean = [sum(weights) / len(weights) for weights in zip(*measured["profile"])]
    axis.plot([max(weight, LEAST) for weight in mean], ":", color="black", lw=2)
    context = record.configuration.context
    if length > context:
        axis.axvline(length - context, color="gray", lw=0.8, ls="--")
    axis.axhline(1 / length, color="gray", lw=0.6)
    axis.set_xlabel("position")
    axis.grid(alpha=0.2)


def _draw_peaks(axis: "Axes", every: Sequence[Head]) -> None:
    axis.set(xlabel="leak rate λ of the head", ylabel="width of its recent peak, tokens")
    axis.set_title("Memory Mosaic, every head of every seed", fontsize=9)
    for seed in sorted({row.seed for row in every}):
        own = [(row.leak, row.width) for row in every if row.seed == seed and row.width is not None]
        axis.plot([leak for leak, _ in own], [width for _, width in own], "o", label=f"seed {seed}")
    axis.grid(alpha=0.2)
    if axis.lines:
        axis.legend(fontsize=8)


RECIPES = "The published trainings are recipes: `tessera train babistories-1 data.source=PATH`, for example."
ABOUT = LIBRARY["attention_profiles"]
EXPERIMENT = Experiment(ABOUT, ProfileSettings, plan, execute, tables, plot, tuple(MODELS), published=RECIPES)
