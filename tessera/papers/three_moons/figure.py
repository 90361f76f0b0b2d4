"""The figure of three moons: errors against the context length (figures 4 and 5) and moduli of matrices (figure 10)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tessera.papers.curves import new_figure
from tessera.papers.experiment import Record
from tessera.papers.three_moons import MEAN_MODULUS, common_period, in_observations
from tessera.papers.three_moons.disentangling import moduli
from tessera.papers.three_moons.report import ROUNDS, seeds_of
from tessera.papers.three_moons.settings import VARIANTS

SYMBOLS = {"W_phi": r"$W_\varphi$", "W_psi": r"$W_\psi$", "W_z": "$W_z$"}
# Memory of each row of panels, and the one that is not trained beside it.
ROWS = {"one_head": "one_head_identity", "three_heads": "three_heads_identity"}


def draw(records: Mapping[str, Record], path: Path) -> None:
    """Errors of both memories and each triple, and the matrices of the first seed of three heads."""
    names = [name for name in ROWS if seeds_of(records, name)]
    triples = list(dict.fromkeys(triple for one in records.values() for triple in one.outcome["first_round"]["errors"]))
    figure = new_figure(5.6 * len(triples), 3.4 + 3.4 * len(names))
    grid = figure.add_gridspec(len(names) + 1, 3 * len(triples))
    for row, name in enumerate(names):
        for column, triple in enumerate(triples):
            axis = figure.add_subplot(grid[row, 3 * column : 3 * column + 3])
            _draw_errors(axis, records, name, triple)
    if "three_heads" in names:
        _draw_matrices(figure, grid, seeds_of(records, "three_heads")[0], len(triples))
    figure.suptitle("Three moons: error of auto-regressive predictions (thick: first seed), and the moons of the heads")
    figure.savefig(path, dpi=110)


def _draw_errors(axis, records: Mapping[str, Record], name: str, triple: str) -> None:
    """Deviation of the continuation against the number of observations before it; entry c - 1 of a curve is for c.

    Black lines: the moons' periods p1, p2, p3. Red line: their common period.
    """
    for place, (part, title) in enumerate(ROUNDS.items()):
        curves = _curves(records, name, part, triple)
        for number, curve in enumerate(curves):
            label = f"{title} ({len(curves)} seed{'s' * (len(curves) > 1)})"
            style = {"alpha": 0.35, "linewidth": 0.6} if number else {"label": label, "linewidth": 1.4}
            axis.plot(range(1, len(curve) + 1), curve, color=f"C{place}", zorder=2 if number else 3, **style)
    for other, form in ((ROWS[name], "C2-"), ("repeat_last", "C3-")):
        for curve in _curves(records, other, "first_round", triple):
            axis.plot(range(1, len(curve) + 1), curve, form, linewidth=0.9, label=VARIANTS[other].title)
    axis.axhline(MEAN_MODULUS, color="gray", linestyle=":", linewidth=1, label="always 0")
    holders = [seed.outcome["first_round"]["errors"] for seed in seeds_of(records, name)]
    periods = next((tuple(errors[triple]["periods"]) for errors in holders if triple in errors), ())
    _mark_periods(axis, periods)
    axis.set(title=f"{VARIANTS[name].title}, {triple} triple {periods}", ylim=(0, MEAN_MODULUS * 1.25))
    axis.set(xlim=(0, None), xlabel="context length (observations)", ylabel="mean absolute deviation")
    axis.legend(fontsize=7, loc="upper right")


def _curves(records: Mapping[str, Record], name: str, part: str, triple: str) -> list[list[float]]:
    outcomes = [seed.outcome[part]["errors"] for seed in seeds_of(records, name) if part in seed.outcome]
    return [errors[triple]["mean"] for errors in outcomes if triple in errors]


def _mark_periods(axis, periods: Sequence[float]) -> None:
    places = [(in_observations(period), f"$p_{i + 1}$", "black") for i, period in enumerate(sorted(periods))]
    if periods:
        places.append((in_observations(common_period(tuple(periods))), "lcm", "red"))
    longest = max((len(line.get_xdata()) for line in axis.lines), default=0)
    for place, words, color in places:
        if place <= longest:
            axis.axvline(place, color=color, linewidth=1.0)
            axis.text(place, MEAN_MODULUS * 1.24, f" {words}", color=color, fontsize=8, va="top")


def _draw_matrices(figure, grid, record: Record, columns: int) -> None:
    """The moduli of the matrices with their numbers."""
    for column, (name, part) in enumerate(moduli(record.outcome["first_round"]["weights"]).items()):
        axis = figure.add_subplot(grid[-1, columns * column : columns * (column + 1)])
        picture = axis.imshow(part.tolist(), cmap="viridis", vmin=0)
        for i, row in enumerate(part.tolist()):
            for j, value in enumerate(row):
                color = "w" if value < part.max() / 2 else "k"
                axis.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize=8, color=color)
        axis.set_xticks(range(part.shape[1]), [str(j + 1) for j in range(part.shape[1])])
        axis.set_yticks(range(part.shape[0]), [str(i + 1) for i in range(part.shape[0])])
        rows, columns_word = ("moon", "head") if name == "W_z" else ("head", "moon")
        axis.set(xlabel=columns_word, ylabel=rows)
        axis.set_title(f"|{SYMBOLS[name]}|, 3 heads, seed {record.configuration.seed}, as published", fontsize=10)
        figure.colorbar(picture, ax=axis, fraction=0.046)
