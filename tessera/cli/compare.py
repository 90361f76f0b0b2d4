"""Compare runs, finished or not: a table of sizes, losses and speed, and a figure of their training curves.

Losses are in nats per token, of questions per token of the answers. Where tokenizers differ, compare bits per byte,
which is given for the best loss. `right`: of runs on questions, the largest share of right answers. A dash stands for
what a run does not know yet: its parameters before the first checkpoint, losses before the first validation.
"""

import argparse
import json
from pathlib import Path

from tessera.base.dataclass_io import to_json
from tessera.base.files import expect_output
from tessera.cli.options import image_file, of_each


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera compare`."""
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run that tessera train began, or of a sweep")
    meaning = "draw training and validation losses over the tokens read into this image file"
    add("--plot", type=image_file, metavar="FILE", help=meaning)
    add("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Read, print and draw."""
    from tessera.evaluation.display import is_figure, print_table
    from tessera.tools.comparison import COLUMNS, draw_runs, run_state
    from tessera.tools.sweep import run_names, runs_of_sweep

    expect_output(arguments.plot, "compare", "--plot", is_figure, "a figure")
    folders = [run for folder in arguments.runs for run in runs_of_sweep(folder) or [folder]]
    states, status = of_each(map(str, folders), lambda folder: run_state(Path(folder)))
    if not states:
        return status
    if arguments.plot:
        draw_runs(arguments.plot, [Path(state.folder) for state in states])
    if arguments.json:
        print(json.dumps([to_json(state) for state in states], indent=1))
    else:
        columns = COLUMNS if any(state.best_exact_match is not None for state in states) else COLUMNS[:-1]
        print_table(columns, run_names([Path(state.folder) for state in states]), [state.cells() for state in states])
    return status
