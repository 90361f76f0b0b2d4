"""The figure of RegBench: accuracy and TVD against the number of training problems, beside the papers'."""

from collections.abc import Mapping
from pathlib import Path

from tessera.experiments.regbench.published import SPARSE_SIZES, SPARSE_TABLE_1

COUNTING = "counting"
NAMES = {
    "mosaic gaussian": "Gaussian",
    "mosaic gaussian_knn": "Gaussian kNN, k = 16",
    "mosaic uniform_knn": "uniform kNN, k = 16",
    "mosaic normalized_relu": "Epanechnikov (normalised ReLU)",
    "mosaic relumax": "Epanechnikov (ReLUmax)",
    "mosaic sparsemax": "Epanechnikov (sparsemax)",
    "mosaic biweight": "Biweight",
    "mosaic triweight": "Triweight",
    "mosaic_v2 gaussian": "Memory Mosaic v2",
    "transformer": "Transformer",
    "lstm": "LSTM",
    "mamba": "Mamba",
    COUNTING: "counted, no training",
}
MARKERS = "osv^<>DPX*hd."
Points = Mapping[str, Mapping[int, Mapping[str, tuple[float, float]]]]


def name_of(model: str) -> str:
    """What tables and figures call a model; what stands after a comma is kept."""
    base, *rest = model.split(", ")
    return ", ".join([NAMES.get(base, base), *rest])


def draw(points: Points, path: Path) -> None:
    """Draw `points[model][training problems][score] = (mean, standard error)`, in per cent, into `path`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(16, 5.6), layout="constrained")
    colours = dict(zip(NAMES, pyplot.get_cmap("tab20").colors[::2] + pyplot.get_cmap("Dark2").colors, strict=False))
    panels = zip(axes, ("accuracy", "accuracy", "tvd"), strict=True)
    for axis, score in panels:
        for index, model in enumerate(NAMES):
            _draw_model(axis, points.get(model, {}), model, score, colours[model], MARKERS[index])
        axis.set_xscale("log")
        axis.set_xticks(SPARSE_SIZES, [f"{size / 1000:g}k" for size in SPARSE_SIZES])
        axis.minorticks_off()
        axis.set_xlabel("training problems, one automaton each")
        axis.grid(alpha=0.25)
    axes[0].set_ylabel("accuracy on held-out automata, %")
    axes[1].set_ylabel("accuracy on held-out automata, %")
    axes[2].set_ylabel("total variation distance on held-out automata, %")
    axes[0].set_title("Most likely next symbol is allowed")
    axes[1].set_title("The same, near the top")
    axes[1].set_ylim(90, 97)
    axes[2].set_title("Distance to the automaton's distribution")
    figure.suptitle(
        "RegBench: ours (longest training) solid and filled, bars: one standard error; the paper dashed and hollow"
    )
    handles = _legend(axes[0], points, colours)
    figure.legend(handles=handles, loc="outside lower center", ncols=6, frameon=False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_model(axis, ours: Mapping, model: str, score: str, colour, marker: str) -> None:
    if not ours:
        return
    column = 0 if score == "accuracy" else 1
    if model in SPARSE_TABLE_1:
        values = [row[column] for row in SPARSE_TABLE_1[model]]
        axis.plot(SPARSE_SIZES, values, "--", color=colour, marker=marker, markerfacecolor="none", alpha=0.6, lw=1)
    if model == COUNTING:
        axis.axhline(ours[0][score][0], color="black", lw=1, ls=":")
        return
    sizes = sorted(ours)
    means, errors = zip(*(ours[size][score] for size in sizes), strict=True)
    axis.errorbar(sizes, means, yerr=errors, color=colour, marker=marker, lw=2, capsize=3, zorder=3)


def _legend(axis, points: Points, colours: Mapping) -> list:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color="black", ls=":", label=name_of(model))
        if model == COUNTING
        else Line2D([], [], color=colours[model], marker=MARKERS[index], label=name_of(model))
        for index, model in enumerate(NAMES)
        if points.get(model)
    ]
