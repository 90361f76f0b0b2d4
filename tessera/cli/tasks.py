"""List the tasks that models can be trained and scored on, and the experiments that `tessera reproduce` runs.

A task makes examples and scores predictions; it knows no model. In Python: `from tessera.tasks.task import TASKS`.
An experiment trains models on tasks and sets the papers' numbers beside what comes out.
"""

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera tasks`."""
    parser.add_argument("--json", action="store_true", help="print JSON, with the papers that they come from")


def run(arguments: argparse.Namespace) -> int:
    """Print one line each."""
    from tessera.papers.experiment import EXPERIMENTS
    from tessera.tasks.task import TASKS

    tasks = {name: {"summary": task.summary, "source": task.source} for name, task in TASKS.items()}
    experiments = {name: {"summary": title, "source": source} for name, (title, source) in EXPERIMENTS.about().items()}
    if arguments.json:
        print(json.dumps({"tasks": tasks, "experiments": experiments}, indent=1))
        return 0
    width = max(map(len, [*tasks, *experiments]), default=0)
    for kind in (tasks, experiments):
        if kind is experiments:
            print("\nexperiments, for `tessera reproduce`:")
        for name, entry in kind.items():
            print(f"{name:<{width}}  {entry['summary']}")
    return 0
