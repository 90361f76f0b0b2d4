"""The figure of attention profiles: a panel for each model and length, and peaks against leaks."""

from collections.abc import Mapping
from pathlib import Path

from tessera.papers.attention_profiles.report import by_model, heads
from tessera.papers.attention_profiles.settings import MODELS
from tessera.papers.curves import new_figure
from tessera.papers.experiment import Record

LEAST = 1e-5  # smaller weights are drawn there


def draw(records: Mapping[str, Record], path: Path) -> None:
    """Draw the first seed of each model: rows are lengths, columns models; below, every seed's heads."""
    from matplotlib.ticker import NullLocator

    groups = {name: seeds[0] for name, seeds in by_model(records).items()}
    lengths = sorted({int(length) for record in groups.values() for length in record.outcome["lengths"]})
    figure = new_figure(3.6 * len(MODELS), 3.0 * (len(lengths) + 1))
    profiles, peaks = figure.subfigures(2, 1, squeeze=False, height_ratios=[len(lengths), 1])[:, 0]
    axes = profiles.subplots(len(lengths), len(MODELS), sharey=True, squeeze=False)
    for row, length in zip(axes, lengths):
        for axis, name in zip(row, MODELS):
            _draw_profile(axis, groups.get(name), length, f"{MODELS[name]}, {length} tokens")
    axes[0, 0].set(yscale="log", ylim=(LEAST, 1.3))
    axes[0, 0].yaxis.set_minor_locator(NullLocator())  # minor ticks of ten axes take seconds
    _draw_peaks(peaks.subplots(), records)
    profiles.suptitle("Weight of the last token on each position: mean over texts; lines are heads, dotted their mean")
    figure.savefig(path, dpi=110)


def _draw_profile(axis, record: Record | None, length: int, title: str) -> None:
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


def _draw_peaks(axis, records: Mapping[str, Record]) -> None:
    axis.set(xlabel="leak rate λ of the head", ylabel="width of its recent peak, tokens")
    axis.set_title("Memory Mosaic, every head of every seed", fontsize=9)
    shown = [row for row in heads(records) if row.width is not None]
    for seed in sorted({row.seed for row in shown}):
        own = [row for row in shown if row.seed == seed]
        axis.plot([row.leak for row in own], [row.width for row in own], "o", label=f"seed {seed}")
    axis.grid(alpha=0.2)
    if shown:
        axis.legend(fontsize=8)
