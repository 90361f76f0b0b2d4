"""What figures are made of: panels, curves over seeds with error bars, curves of training, one legend."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from tessera.evaluation.display import save_figure
from tessera.papers.records import mean_of
from tessera.tasks.task import Estimate

# Of matplotlib, which takes half a second to import, and most commands draw nothing.
Axes: TypeAlias = Any
MARKERS = "osD^v<>pPX*hdH8+"
COLORS = [*(f"C{index}" for index in range(10)), "black", "gold", "navy", "lime", "magenta", "teal"]


def styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """A color and a marker for each name, the same in every panel."""
    return {
        name: {"color": COLORS[index % len(COLORS)], "marker": MARKERS[index % len(MARKERS)]}
        for index, name in enumerate(names)
    }


@contextmanager
def panels(
    path: Path, width: float, height: float, rows: int = 1, columns: int = 1, title: str = "", legend: str = "each"
) -> Iterator[list[Axes]]:
    """The axes of a figure of so many inches, row by row; afterwards it gets legends and a grid and is stored.

    `legend`: "each" panel its own, "beside" each panel, "shared" below all of them, each name once, or "none". A panel
    in which nothing was drawn is left out.
    """
    from matplotlib.figure import Figure  # not pyplot: no window, no global state

    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes:
        axis.grid(alpha=0.3)
    yield axes
    handles: dict[str, Any] = {}
    for axis in axes:
        named = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
        handles |= named
        if not axis.has_data():
            axis.set_visible(False)
        elif named and legend in ("each", "beside"):
            place = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if legend == "beside" else {}
            axis.legend(fontsize=8, frameon=False, **place)
    if legend == "shared":
        longest = max(map(len, handles), default=1)
        beside = max(1, min(len(handles), int(12 * width / (longest + 8))))
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=beside, frameon=False)
    if title:
        figure.suptitle(title)
    save_figure(figure, path)


def draw_curve(
    axis: Axes, points: Mapping[Any, Estimate], label: str, *, scale: float = 1.0, bars: float = 1.0, **style: Any
) -> None:
    """A line through means by length, with `bars` standard errors where there are some."""
    means = [scale * point.mean for point in points.values()]
    errors = [0.0 if p.standard_error != p.standard_error else scale * bars * p.standard_error for p in points.values()]
    style = {"marker": "o", "markersize": 4, "capsize": 2, **style}
    axis.errorbar(list(points), means, yerr=errors, label=label, **style)


def doubling(axis: Axes, lengths: Iterable[float], form: str = "{:,}") -> None:
    """A logarithmic axis of lengths that double, each named."""
    ticks = sorted(set(lengths))
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [form.format(tick) for tick in ticks])
    axis.minorticks_off()


def learning_curve(seeds: Sequence[Sequence[tuple[float, float]]]) -> dict[float, Estimate]:
    """The mean over seeds at each step that all of them measured; a seed is a list of (step, value)."""
    curves = [dict(seed) for seed in seeds]
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    return {step: mean_of([curve[step] for curve in curves]) for step in steps}


def draw_learning(axis: Axes, seeds: Sequence[Sequence[tuple[float, float]]], label: str, **style: Any) -> None:
    """The curves of a training: each seed as a thin line, their mean as a thick one."""
    for seed in seeds if len(seeds) > 1 else ():
        axis.plot(*zip(*seed, strict=True), **{**style, "lw": 0.6, "alpha": 0.4})
    means = learning_curve(seeds)
    axis.plot(list(means), [point.mean for point in means.values()], label=label, **{"lw": 2, **style})
