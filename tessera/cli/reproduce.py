"""Reproduce one of the papers' experiments: train, evaluate, draw, and set the paper's numbers beside ours.

Writes results/EXPERIMENT/BUDGET.json, .png and .md. Called again after an interruption it goes on where it stopped.
Budgets: smoke (seconds; shows that it runs), cpu (reduced; minutes to a day on two cores, as its page in
docs/experiments says), for some full (for GPUs; docs/experiments/README.md says where it is the published setting).
"""

import argparse
from pathlib import Path

from tessera.cli.arguments import positive_int
from tessera.papers.experiment import RunSelection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera reproduce`."""
    parser.add_argument("experiment", help="as listed by `tessera tasks`")
    parser.add_argument(
        "--budget",
        default="cpu",
        help="smoke, cpu or, for some, full (default: cpu), the published setting",
    )
    parser.add_argument("--models", nargs="+", help="only these models (default: those of the budget)")
    parser.add_argument("--kernels", nargs="+", help="only these kernels (default: those of the budget)")
    parser.add_argument("--seeds", type=positive_int, help="number of seeds (default: that of the budget)")
    parser.add_argument(
        "--data",
        nargs="+",
        metavar="NAME=PATH",
        help="texts of your own for experiments on language; the results name them, not their paths",
    )
    parser.add_argument("--only", metavar="PATTERN", help='only runs of this name, as in "*/1000/seed 0"')
    parser.add_argument(
        "--workers", type=positive_int, help="runs side by side (default: one per core; with a GPU, one)"
    )
    parser.add_argument("--output", type=Path, default=Path("results"), help="default: results")


def run(arguments: argparse.Namespace) -> int:
    """Reproduce, then print the table."""
    from tessera.papers.runner import reproduce

    models, kernels = (tuple(names) if names else None for names in (arguments.models, arguments.kernels))
    data = tuple(arguments.data) if arguments.data else None
    selection = RunSelection(arguments.budget, models, kernels, arguments.seeds, data)
    table = reproduce(
        arguments.experiment,
        selection,
        output=arguments.output,
        workers=arguments.workers,
        only=arguments.only,
        imports=tuple(arguments.imports),
    )
    print(table.read_text(encoding="utf-8"))
    print(f"written: {table.with_suffix('')}.json, .png and .md")
    return 0
