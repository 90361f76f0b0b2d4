"""The pictures of three moons: errors against the context length (figures 4 and 5), moduli of matrices (figure 10)."""

from collections.abc import Mapping, Sequence

from tessera.tasks.three_moons.periods import Periods, common_period, in_observations
from tessera.tasks.three_moons.task import MEAN_MODULUS


def draw_errors(axis, groups: Mapping[str, Sequence[Sequence[float]]], periods: Periods, title: str) -> None:
    """Deviation of the continuation against the number of observations before it.

    Each group is drawn in one colour, a curve per trained model, the first one bold. Black lines: the moons' periods
    p1, p2, p3. Red line: their common period. Entry c - 1 of a curve is for c observations.
    """
    for color, (name, curves) in enumerate(groups.items()):
        for number, curve in enumerate(curves):
            style = {"alpha": 0.35, "linewidth": 0.6} if number else {"label": name, "linewidth": 1.4}
            axis.plot(range(1, len(curve) + 1), curve, color=f"C{color}", zorder=2 if number else 3, **style)
    longest = max(len(curve) for curves in groups.values() for curve in curves)
    axis.axhline(MEAN_MODULUS, color="gray", linestyle=":", linewidth=1, label="always 0")
    top = MEAN_MODULUS * 1.25
    for index, period in enumerate(sorted(periods)):
        _mark(axis, in_observations(period), f"$p_{index + 1}$", "black", top, longest)
    _mark(axis, in_observations(common_period(periods)), "lcm", "red", top, longest)
    axis.set_xlim(0, longest)
    axis.set_ylim(0, top)
    axis.set_title(title, fontsize=10)
    axis.set_xlabel("context length (observations)")
    axis.set_ylabel("mean absolute deviation")


def _mark(axis, place: float, words: str, color: str, top: float, longest: int) -> None:
    if place <= longest:
        axis.axvline(place, color=color, linewidth=1.0)
        axis.text(place, top * 0.99, f" {words}", color=color, fontsize=8, va="top")


def draw_moduli(axis, matrix: Sequence[Sequence[float]], title: str, rows: str, columns: str) -> None:
    """The moduli of a complex matrix as a picture with its numbers."""
    picture = axis.imshow(matrix, cmap="viridis", vmin=0)
    middle = max(max(row) for row in matrix) / 2
    for i, row in enumerate(matrix):
        for j, value in enumerate(row):
            axis.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=8, color="w" if value < middle else "k")
    axis.set_xticks(range(len(matrix[0])), [str(j + 1) for j in range(len(matrix[0]))])
    axis.set_yticks(range(len(matrix)), [str(i + 1) for i in range(len(matrix))])
    axis.set_title(title, fontsize=10)
    axis.set_xlabel(columns)
    axis.set_ylabel(rows)
    axis.figure.colorbar(picture, ax=axis, fraction=0.046)
