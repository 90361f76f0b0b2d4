"""Reproduce one of the papers' experiments: train, evaluate, draw, and set the paper's numbers beside ours.

Writes results/EXPERIMENT/BUDGET.json, .png and .md. Called again after an interruption it goes on where it stopped.
Budgets: smoke (seconds; shows that it runs), cpu (reduced; minutes to a day on two cores, as its page in
docs/experiments says); some have long (for a GPU).
"""

import argparse
from pathlib import Path

from tessera.cli.options import positive_int
from tessera.papers.experiment import RunSelection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera reproduce`."""
    add = parser.add_argument
    add("experiment", help="name of the experiment; tessera tasks lists them")
    add("--budget", default="cpu", help="how much to compute: smoke, cpu or long, as above (default: cpu)")
    add("--models", nargs="+", help="train only these models (default: those of the budget)")
    add("--kernels", nargs="+", help="train only with these kernels (default: those of the budget)")
    add("--seeds", type=positive_int, help="train each model from so many seeds (default: as many as the budget has)")
    meaning = "use this text in an experiment on language; results hold its name, not its path"
    add("--data", nargs="+", metavar="NAME=PATH", help=meaning)
    add("--only", metavar="PATTERN", help='do only the runs whose names fit this pattern, such as "*/1000/seed 0"')
    meaning = "do so many runs at the same time (default: one per core, or one with a GPU)"
    add("--workers", type=positive_int, help=meaning)
    add("--output", type=Path, default=Path("results"), help="write into this folder (default: results)")


def run(arguments: argparse.Namespace) -> int:
    """Reproduce, then print the table."""
    from tessera.papers.runner import reproduce

    models, kernels, data = (tuple(getattr(arguments, name) or ()) or None for name in ("models", "kernels", "data"))
    selection = RunSelection(arguments.budget, models, kernels, arguments.seeds, data)
    options = {name: getattr(arguments, name) for name in ("output", "workers", "only")}
    table = reproduce(arguments.experiment, selection, imports=tuple(arguments.imports), **options)
    print(table.read_text(encoding="utf-8"))
    print(f"written: {table.with_suffix('')}.json, .png and .md")
    return 0
