"""The figure of document questions: right answers against length, after training and after tuning."""

from pathlib import Path

from tessera.papers.curves import new_figure
from tessera.papers.document_qa.published import NAMES
from tessera.papers.document_qa.report import STAGES, Curve

COLORS = dict(zip(NAMES, ("tab:blue", "tab:red", "tab:orange", "tab:gray")))
CHANCE = 100 / 6


def draw(curves: list[Curve], path: Path) -> None:
    """Draw one panel per stage; v2 without its long-term memories is dotted."""
    figure = new_figure(11, 4.8)
    axes = figure.subplots(1, 2)
    for axis, (stage, title) in zip(axes, STAGES.items(), strict=True):
        chosen = [curve for curve in curves if curve.stage == stage]
        for curve in chosen:
            means = [100 * point.mean for point in curve.points.values()]
            errors = [100 * point.standard_error for point in curve.points.values()]
            style = {"color": COLORS[curve.model], "linestyle": "-" if curve.has_long_term else ":", "marker": "o"}
            axis.errorbar(list(curve.points), means, yerr=errors, label=curve.name, capsize=2, markersize=4, **style)
        lengths = sorted({length for curve in chosen for length in curve.points})
        axis.set_xscale("log", base=2)
        axis.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axis.axhline(CHANCE, color="black", linewidth=0.8, linestyle="--", label="guess")
        axis.axvline(chosen[0].trained_length, color="black", linewidth=0.8, linestyle=":")
        axis.set(ylim=(0, 102), xlabel="tokens of a sample", ylabel="right answers, %")
        axis.set_title(f"{title} at {chosen[0].trained_length:,} tokens")
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    figure.savefig(path, dpi=130)
