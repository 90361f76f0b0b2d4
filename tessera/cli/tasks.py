"""List the tasks that models can be trained and judged on, one line each."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`tessera tasks` has no arguments."""


def run(arguments: argparse.Namespace) -> int:
    """Print them, and the experiments that use them."""
    from tessera.experiments.catalogue import EXPERIMENTS
    from tessera.tasks.catalogue import TASKS

    width = max(map(len, [*TASKS, *EXPERIMENTS]))
    for name, task in TASKS.items():
        print(f"{name:<{width}}  {task.summary} ({task.source})")
    print("\nexperiments, for `tessera reproduce`:")
    for name, experiment in EXPERIMENTS.items():
        print(f"{name:<{width}}  {experiment.title} ({experiment.source})")
    return 0
