"""Train a small Memory Mosaic and the transformer of equal size on the same stories, and compare them.

Writes runs/demo: the two runs (configurations, safetensors checkpoints, metrics as JSON lines), loss.png, samples.txt
and demo.json; prints a table and a story as it is generated. Takes a few minutes on two cores; on a slower machine
both models train for fewer steps, so that it ends within --minutes.
"""

import argparse
from pathlib import Path

from tessera.cli.options import positive_float

PROMPT = "Once upon a time there was a king who had three daughters, and the youngest"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera demo`."""
    add = parser.add_argument
    meaning = "change this key of both recipes, such as training.batch_size=4"
    add("overrides", nargs="*", default=[], metavar="key=value", help=meaning)
    add("--output", type=Path, default=Path("runs/demo"), help="write everything into this folder (default: runs/demo)")
    add("--minutes", type=positive_float, default=5.5, help="train for at most so many minutes (default: 5.5)")
    add("--prompt", default=PROMPT, help="the text that both models continue at the end")


def run(arguments: argparse.Namespace) -> int:
    """Train both, then write and print what came out."""
    from tessera.tools.demo import Demo

    Demo(arguments.output, arguments.overrides, arguments.minutes, arguments.prompt).run()
    return 0
