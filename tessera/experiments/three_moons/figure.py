"""The figure of three moons: figures 4, 5 and 10 of the paper with our numbers."""

from collections.abc import Mapping
from pathlib import Path

from tessera.experiments.experiment import Record
from tessera.experiments.three_moons.disentangling import matrices
from tessera.experiments.three_moons.panels import draw_errors, draw_moduli
from tessera.experiments.three_moons.records import ROUNDS, outcome_of, seeds_of
from tessera.experiments.three_moons.report import WORDS

SYMBOLS = {"W_phi": r"$W_\varphi$", "W_psi": r"$W_\psi$", "W_z": "$W_z$"}


def plot(runs: Mapping[str, Record], path: Path) -> None:
    """Errors against the context length for both memories and both triples, and the first seed's matrices."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [name for name in ("one_head", "three_heads") if seeds_of(runs, name)]
    figure = pyplot.figure(figsize=(12, 3.4 + 3.4 * len(names)), constrained_layout=True)
    grid = figure.add_gridspec(len(names) + 1, 6)
    for row, name in enumerate(names):
        _draw_row(figure, grid, row, name, list(seeds_of(runs, name).values()))
    if "three_heads" in names:
        _draw_matrices(figure, grid, next(iter(seeds_of(runs, "three_heads").values())))
    figure.suptitle("Three moons: error of auto-regressive predictions (thick: first seed), and the moons of the heads")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _draw_row(figure, grid, row: int, name: str, records: list[Record]) -> None:
    for column, triple in enumerate(records[0].outcome["errors"]):
        periods = tuple(records[0].outcome["errors"][triple]["periods"])
        axis = figure.add_subplot(grid[row, 3 * column : 3 * column + 3])
        groups = {
            f"{training} ({len(records)} seed{'s' * (len(records) > 1)})": [
                outcome_of(record, path)["errors"][triple]["mean"] for record in records
            ]
            for training, path in ROUNDS.items()
        }
        draw_errors(axis, groups, periods, f"{WORDS[name]}, {triple} triple {periods}")
        axis.legend(fontsize=8, loc="upper right")


def _draw_matrices(figure, grid, record: Record) -> None:
    seed = record.configuration["seed"]
    for column, (name, matrix) in enumerate(matrices(record.outcome["weights"]).items()):
        axis = figure.add_subplot(grid[-1, 2 * column : 2 * column + 2])
        labels = ("moon", "head") if name == "W_z" else ("head", "moon")
        draw_moduli(axis, matrix.abs().tolist(), f"|{SYMBOLS[name]}|, 3 heads, seed {seed}, as published", *labels)
