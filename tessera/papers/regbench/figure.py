"""The figure of RegBench: accuracy and TVD against the number of training problems, beside the papers'."""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from tessera.papers.curves import new_figure
from tessera.papers.experiment import Record
from tessera.papers.regbench.published import NAMES, SPARSE_SIZES, SPARSE_TABLE_1
from tessera.papers.regbench.report import score
from tessera.papers.regbench.settings import LOSS_BLOCK, NGRAM

MARKERS = "osv^<>DPX*hdpH8"
COLORS = [f"C{place}" for place in range(10)] + ["black", "gold", "navy", "lime", "magenta"]
# Score, column of the paper's table, title, limits of the axis.
PANELS = (
    ("accuracy", 0, "Most likely next symbol is allowed, %", None),
    ("accuracy", 0, "The same, near the top", (90, 97)),
    ("tvd", 1, "Total variation distance to the automaton, %", None),
)
Trainings = Mapping[str, Mapping[int, list[Record]]]


def draw(trainings: Trainings, path: Path) -> None:
    """Draw `trainings[model][training problems]`, the records of each seed, into `path`."""
    figure = new_figure(13, 9.6)
    *score_axes, loss_axis = figure.subplots(2, 2).flat
    for axis, (quantity, column, title, limits) in zip(score_axes, PANELS, strict=True):
        for symbols, seeds in trainings.get(NGRAM, {}).items():
            height = score(seeds, "held_out", quantity).mean
            axis.axhline(height, color="gray", lw=0.8, ls=":")
            axis.annotate(f"counting, {symbols}", (SPARSE_SIZES[-1], height), fontsize=7, ha="right", va="bottom")
        for place, name in enumerate(NAMES):
            style = {"color": COLORS[place], "marker": MARKERS[place]}
            _draw_model(axis, name, trainings.get(name, {}), quantity, column, style)
        axis.set(xscale="log", xlabel="training problems, one automaton each", title=title)
        axis.set_xticks((100, *SPARSE_SIZES), ["100", *(f"{size / 1000:g}k" for size in SPARSE_SIZES)])
        axis.minorticks_off()
        axis.grid(alpha=0.25)
        if limits:
            axis.set_ylim(*limits)
    _draw_losses(loss_axis, trainings)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.suptitle("RegBench, held-out automata. Filled: ours, longest training ± standard error. Hollow: the paper")
    figure.savefig(path, dpi=120)


def _draw_model(axis, name: str, ours: Mapping[int, list[Record]], quantity: str, column: int, style: dict) -> None:
    if not ours:
        return
    if name in SPARSE_TABLE_1:
        values = [row[column] for row in SPARSE_TABLE_1[name]]
        axis.plot(SPARSE_SIZES, values, "--", markerfacecolor="none", alpha=0.6, lw=1, **style)
    estimates = {problems: score(seeds, "held_out", quantity) for problems, seeds in sorted(ours.items())}
    means, errors = ([getattr(one, field) for one in estimates.values()] for field in ("mean", "standard_error"))
    axis.errorbar(list(estimates), means, yerr=errors, label=NAMES[name], lw=2, capsize=3, zorder=3, **style)


def _draw_losses(axis, trainings: Trainings) -> None:
    """Of each model the training on the fewest problems of which the losses are known."""
    for place, name in enumerate(NAMES):
        for problems, seeds in sorted(trainings.get(name, {}).items()):
            curves = [loss for seed in seeds if (loss := seed.outcome.get("held_out_loss_by_block"))]
            if not curves:
                continue
            means = [fmean(losses) for losses in zip(*curves)]
            positions = [LOSS_BLOCK * block for block in range(len(means))]
            axis.plot(positions, means, color=COLORS[place], lw=2, label=f"{NAMES[name]}, {problems:,} problems")
            break
    axis.set(xlabel="tokens read before", title="Loss, nats per symbol, of the models trained on the fewest problems")
    axis.grid(alpha=0.25)
    if axis.lines:
        axis.legend(fontsize=8, frameon=False)
