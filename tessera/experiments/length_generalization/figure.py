"""The figure of length generalisation: exact match against length, one panel per task."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tessera.experiments.length_generalization import published

TITLES = {
    "mqmtar": "MQMTAR: recall the values of several keys",
    "sort": "Sort: write in ascending order",
    "reverse": "Reverse: write backwards",
    "sort_long": "Sort, trained four times longer",
}
LABELS = {
    "gaussian": "Gaussian",
    "sparsemax": "sparsemax",
    "biweight": "biweight",
    "triweight": "triweight",
    "relumax": "ReLUmax",
    "normalized_relu": "normalised ReLU",
    "gaussian_knn_16": "Gaussian kNN, k=16",
    "gaussian_knn_32": "Gaussian kNN, k=32",
    "uniform_knn_16": "uniform kNN, k=16",
    "uniform_knn_32": "uniform kNN, k=32",
    "transformer": "transformer (rotary)",
}
MARKS = "osD^v<>pPX*"


def draw(curves: Mapping[str, Mapping[str, Mapping[float, Any]]], path: Path) -> None:
    """Draw `curves`: task -> kernel -> length factor -> a point with `mean` and `error`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shape = {"nrows": 2, "ncols": 2} if len(curves) > 3 else {"nrows": 1, "ncols": max(1, len(curves))}
    size = (6.4 * shape["ncols"], 4.8 * shape["nrows"] + 0.6)
    figure, axes = pyplot.subplots(**shape, figsize=size, constrained_layout=True, squeeze=False)
    for axis, (task, kernels) in zip(axes.flat, curves.items()):
        _panel(axis, task, kernels)
    handles: dict[str, Any] = {}
    for axis in axes.flat:
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels())))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=9)
    figure.suptitle("Exact match beyond the lengths of training: ours (solid), paper at its size (hollow, dashed)")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _panel(axis: Any, task: str, kernels: Mapping[str, Mapping[float, Any]]) -> None:
    for name, points in kernels.items():
        place = list(LABELS).index(name)
        style = {"color": f"C{place % 10}" if name != "transformer" else "black", "marker": MARKS[place]}
        factors = list(points)
        means, errors = ([getattr(point, field) for point in points.values()] for field in ("mean", "error"))
        axis.errorbar(factors, means, yerr=errors, label=LABELS[name], capsize=2, markersize=5, **style)
        known = _paper(name, task.removesuffix("_long"))
        if known:
            axis.plot(*zip(*known), linestyle="--", linewidth=0.9, markersize=5, fillstyle="none", alpha=0.6, **style)
    ticks = sorted({factor for points in kernels.values() for factor in points})
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [f"{factor:g}" for factor in ticks])
    axis.minorticks_off()
    axis.set_ylim(-0.03, 1.04)
    axis.set_title(TITLES[task])
    axis.set_xlabel("length / longest in training")
    axis.set_ylabel("exact match")
    axis.grid(alpha=0.3)


def _paper(name: str, task: str) -> list[tuple[float, float]]:
    means = published.MEAN.get(name, {}).get(task, ())
    return [(factor, mean) for factor, mean in zip(published.FACTORS[task], means) if mean is not None]
