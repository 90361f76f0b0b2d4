"""Figures of losses: training curves, and loss by position in the context."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera.base.files import write_atomically, writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#c2410c", "#1d4ed8", "#15803d", "#7e22ce", "#334155", "#ca8a04", "#db2777", "#0891b2")
LINES = ("solid", "dashed", "dotted", "dashdot")  # one for each round of the colours
MADE_BY = "Tessera figure"  # in the metadata of every figure, so that it may be replaced


def training_curves(path: Path, runs: Mapping[str, Sequence[Mapping[str, Any]]], title: str = "") -> None:
    """Draw training (thin) and validation (marked) loss over tokens seen of each run's metrics into `path`."""
    figure, axes = _canvas("training tokens, millions", "loss, nats per token", title)
    lowest, highest = np.inf, 0.0
    for (name, records), look in zip(runs.items(), _looks(len(runs))):
        train = [(r["tokens"] / 1e6, r["loss"]) for r in records if r.get("loss") is not None]
        check = _validation(records)
        if train:
            label = None if check else f"{name}, training"
            axes.plot(*zip(*train), **look, linewidth=0.9, alpha=0.45, label=label)
        if check:
            label = f"{name}, validation ({check[-1][1]:.3f} at the end; thin: training)"
            axes.plot(*zip(*check), **look, linewidth=2, marker="o", markersize=4, label=label)
        settled = [loss for _, loss in train[max(1, len(train) // 20) :]] + [loss for _, loss in check]
        lowest, highest = min([lowest, *settled]), max([highest, *settled])
    if np.isfinite(lowest):
        margin = 0.08 * (highest - lowest) + 0.02
        axes.set_ylim(lowest - margin, highest + margin)
    axes.margins(x=0.02)
    if len(runs) > 2:  # would hide the curves
        figure.set_figheight(figure.get_figheight() + 0.2 * len(runs))
        figure.legend(frameon=False, loc="outside lower center")
    else:
        axes.legend(frameon=False, loc="upper right")
    _save(figure, path)


def _validation(records: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """(millions of tokens, validation loss); steps that logged no token count lie between those that did."""
    counted = [(r["step"], r["tokens"] / 1e6) for r in records if "tokens" in r]
    if not counted:
        return []
    steps, tokens = zip(*sorted(counted))
    return [
        (float(np.interp(r["step"], steps, tokens)), r["validation_loss"]) for r in records if "validation_loss" in r
    ]


def position_curves(
    path: Path, losses: Mapping[str, Sequence[float | None]], title: str = "", average: float | None = None
) -> None:
    """Draw loss over position in the context (log scale) of each named curve into `path`.

    Losses are averaged in narrow bins; with `average`, they are `moving_average`s of that decay instead.
    """
    figure, axes = _canvas("tokens of context before the predicted one", "loss, nats per token", title)
    for (name, curve), look in zip(losses.items(), _looks(len(losses))):
        numbers = np.asarray(curve, dtype=float)
        if average is None:
            places, means = binned(numbers)
        else:
            places, means = np.arange(1, len(numbers) + 1), moving_average(numbers, average)
        axes.plot(places, means, **look, linewidth=2, label=name)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if len(losses) > 1:
        axes.legend(frameon=False)
    _save(figure, path)


def moving_average(curve: np.ndarray, decay: float) -> np.ndarray:
    """The exponential moving average over positions: `a_t = sum_s decay^(t-s) x_s / sum_s decay^(t-s)`, s <= t.

    Positions that are NaN are left out of both sums. The division keeps the first positions unbiased.
    """
    averages, total, weight = np.full(len(curve), np.nan), 0.0, 0.0
    for index, value in enumerate(curve):
        total, weight = decay * total, decay * weight
        if np.isfinite(value):
            total, weight = total + value, weight + 1.0
        if weight > 0:
            averages[index] = total / weight
    return averages


def binned(curve: np.ndarray, per_octave: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """(position, mean loss) in bins of equal width on a log scale; position t (from 1) is `curve[t - 1]`."""
    positions = np.arange(1, len(curve) + 1)
    bins = np.floor(np.log2(positions) * per_octave).astype(int)
    kept = np.isfinite(curve)
    numbers = np.unique(bins[kept])
    members = [kept & (bins == number) for number in numbers]
    return np.array([positions[m].mean() for m in members]), np.array([curve[m].mean() for m in members])


def _canvas(x: str, y: str, title: str) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure  # not pyplot: no display, no global state

    figure = Figure(figsize=(8, 4.8), dpi=150, layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#e2e8f0", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _looks(count: int) -> list[dict[str, Any]]:
    """Colour and kind of line of each of so many curves: the same only after 32."""
    rounds = [divmod(number, len(COLOURS)) for number in range(count)]
    return [{"color": COLOURS[colour], "linestyle": LINES[again % len(LINES)]} for again, colour in rounds]


def is_figure(path: Path) -> bool:
    """Whether `path` is a figure that this module drew."""
    try:
        return MADE_BY.encode() in path.read_bytes()
    except OSError:
        return False


def _save(figure: "Figure", path: Path) -> None:
    path = Path(path)
    kind = path.suffix[1:].lower() or "png"
    metadata = {"Software" if kind == "png" else "Creator": MADE_BY}
    with writing(path, "figure"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda temporary: figure.savefig(temporary, format=kind, metadata=metadata))
