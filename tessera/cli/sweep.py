"""Train a recipe at every point of a grid, and print one row per run with the best marked.

An override with several values, divided by commas, is varied; every combination is a run. Commas in brackets or quotes
divide nothing:
  tessera sweep stories-mosaic training.steps=250 training.learning_rate=1e-3,3e-3 seed=0,1
  tessera sweep stories-mosaic 'model.kernel=biweight,{name: knn, k: 32}'
Where seeds vary beside other settings, a second table gives means over seeds with their standard error. (training.seed
is taken for seed.)

The same command goes on where it was stopped, and trains no run twice. Each run is a folder under --output, as tessera
train makes it; sweep.json beside them holds the table. A run whose loss is not finite, or for which there is too little
memory, is a row that says so. Called again, only the latter is tried again; delete the folder of another.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from tessera.base.errors import TrainingInterrupted
from tessera.cli.options import repeated
from tessera.recipes.recipe_files import find_recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera sweep`."""
    add = parser.add_argument
    add("recipe", help="a recipe file (YAML), or the name of a recipe that comes with the library")
    meaning = "values to try for this key of the recipe, such as training.learning_rate=1e-3,3e-3"
    add("overrides", nargs="+", metavar="key=value,...", help=meaning)
    add("--output", type=Path, help="write the runs into this folder (default: runs/sweeps/NAME OF THE RECIPE)")
    add("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Train all, then print the table."""
    find_recipe(arguments.recipe)  # before the seconds that importing models takes

    from tessera.tools.sweep import Sweep

    overrides = [re.sub(r"^training\.(?=seed=)", "", override) for override in arguments.overrides]
    sweep = Sweep.read(arguments.recipe, overrides, arguments.output)

    def begin(number, point):
        print(f"run {number + 1} of {len(sweep.points)}: {point.label}", file=sys.stderr, flush=True)

    try:
        table = sweep.run(begin)
    except TrainingInterrupted as stop:
        flags = ["--json"] if arguments.json else []
        raise KeyboardInterrupt(f"{stop} Go on: {repeated('sweep', arguments, *flags)}") from None
    if arguments.json:
        print(json.dumps(table, indent=1, allow_nan=False))
    else:
        _print(table["runs"])
        print(f"written: {sweep.output / 'sweep.json'}")
    return 0


def _print(runs: list[dict[str, Any]]) -> None:
    from tessera.evaluation.display import print_table
    from tessera.papers.records import mean_of
    from tessera.papers.tables import with_error
    from tessera.tools.sweep import NO_MEMORY, best, over_seeds

    are_questions = any(run["validation_exact_match"] is not None for run in runs)
    second = "validation_exact_match" if are_questions else "validation_bits_per_byte"
    winner = best(runs)
    forms = {"validation_loss": ".4f", second: ".4f", "parameters": ",", "tokens": ","}
    rows = []
    for number, run in enumerate(runs):
        cells = ["-" if run[name] is None else format(run[name], form) for name, form in forms.items()]
        problem = run["problem"] and (NO_MEMORY if NO_MEMORY in run["problem"] else "not finite")
        rows.append([*cells, problem or "best" * (number == winner)])
    loss = "nats/token of answers" if are_questions else "nats/token"
    columns = (loss, "right" if are_questions else "bits/byte", "parameters", "tokens", "")
    print_table(columns, [_name(run["values"]) for run in runs], rows)
    groups = over_seeds(runs)
    if "seed" in runs[0]["values"] and len(groups) > 1:
        means = [mean_of(numbers) for _, numbers in groups]
        most_seeds = max(mean.count for mean in means)  # with fewer, a seed diverged
        comparable = [mean for mean in means if mean.count == most_seeds]
        finest = (max if are_questions else min)(comparable, key=lambda mean: mean.mean)
        lines = [(with_error(mean, ".4f"), str(mean.count), "best" * (mean is finest)) for mean in means]
        print("\nmean over seeds")
        print_table((columns[1], "seeds", ""), [_name(values) for values, _ in groups], lines)


def _name(values: dict[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in values.items()) or "all"
