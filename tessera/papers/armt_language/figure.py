"""The figure of ARMT on language: bits per byte by segment, and what lies between them and the base's."""

from collections.abc import Mapping
from pathlib import Path

from tessera.papers.armt_language.published import BASES, READINGS, TEXTS
from tessera.papers.armt_language.report import by_segment, measured
from tessera.papers.curves import new_figure
from tessera.papers.experiment import Record

COLORS = {
    "one_segment": "#6b7280",
    "whole_context": "#111827",
    "continued": "#a3a3a3",
    "rmt": "#1d4ed8",
    "armt": "#c2410c",
}


def draw(records: Mapping[str, Record], path: Path) -> None:
    """A column for each base and text: above the bits per byte, below minus those of the base with one segment."""
    columns = measured(records)
    trained = max(record.configuration.trained for record in records.values())
    figure = new_figure(0.6 + 4.6 * len(columns), 7.4)
    above, below = figure.subplots(2, len(columns), squeeze=False)
    for bits, change, ((base, text), readings) in zip(above, below, columns.items()):
        reference = by_segment(readings["one_segment"]) if "one_segment" in readings else None
        for name, seeds in readings.items():
            means = by_segment(seeds)
            style = {"color": COLORS[name], "marker": "o", "ms": 3, "lw": 1.4, "label": READINGS[name]}
            places = range(1, len(means) + 1)
            bits.plot(places, means, **style)
            if reference is not None:
                change.plot(places, [one - other for one, other in zip(means, reference)], **style)
        bits.set(title=f"{BASES[base]}, {TEXTS[text]}", ylabel="bits per byte")
        change.set(xlabel="segment", ylabel="minus the base with one segment")
        for axis in (bits, change):
            axis.axvline(trained + 0.5, color="black", lw=0.8, ls="--", label="longest in training")
            axis.grid(alpha=0.25)
        change.set_visible(reference is not None)
    lines = {line.get_label(): line for axis in above for line in axis.lines}
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=len(lines), frameon=False)
    figure.savefig(path, dpi=120)
