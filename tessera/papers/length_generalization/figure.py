"""The figure of length generalisation: exact match against length, one panel per task."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tessera.papers.curves import new_figure
from tessera.papers.length_generalization import published
from tessera.papers.length_generalization.report import Curve

TITLES = {
    "mqmtar": "MQMTAR: recall the values of several keys",
    "sort": "Sort: write in ascending order",
    "reverse": "Reverse: write backwards",
    "sort_long": "Sort, trained four times longer",
}
MARKERS = "osD^v<>pPX*"


def draw(curves: Mapping[str, Mapping[str, Curve]], path: Path) -> None:
    """Draw `curves`: task -> row -> length factor -> exact match."""
    rows, columns = (2, 2) if len(curves) > 3 else (1, max(1, len(curves)))
    figure = new_figure(6.4 * columns, 4.8 * rows + 0.6)
    handles: dict[str, Any] = {}
    for axis, (task, by_name) in zip(figure.subplots(rows, columns, squeeze=False).flat, curves.items()):
        _panel(axis, task, by_name)
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels())))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=9)
    figure.suptitle("Exact match beyond the lengths of training: ours (solid), paper at its size (hollow, dashed)")
    figure.savefig(path, dpi=130)


def _panel(axis: Any, task: str, by_name: Mapping[str, Curve]) -> None:
    for name, curve in by_name.items():
        place = list(published.NAMES).index(name)
        style = {"color": f"C{place % 10}" if name != "transformer" else "black", "marker": MARKERS[place]}
        means, errors = zip(*(point.estimate[:2] for point in curve.values()), strict=True)
        axis.errorbar(list(curve), means, yerr=errors, label=published.NAMES[name], capsize=2, markersize=5, **style)
        known = _paper(name, task.removesuffix("_long"))
        if known:
            axis.plot(*zip(*known), linestyle="--", linewidth=0.9, markersize=5, fillstyle="none", alpha=0.6, **style)
    ticks = sorted({factor for curve in by_name.values() for factor in curve})
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{factor:g}" for factor in ticks])
    axis.minorticks_off()
    axis.set(ylim=(-0.03, 1.04), title=TITLES[task], xlabel="length / longest in training", ylabel="exact match")
    axis.grid(alpha=0.3)


def _paper(name: str, task: str) -> list[tuple[float, float]]:
    means = published.MEAN.get(name, {}).get(task, ())
    return [(factor, mean) for factor, mean in zip(published.FACTORS[task], means) if mean is not None]
