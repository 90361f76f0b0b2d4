"""Train a small mosaic to find passwords in books, let it read two novels, and ask it; it cites the sentences.

Writes runs/demo: the trained run, books.memory (what it read, for `tessera ask --memory`), answers.html (the books with
the sentences marked), looked.png (where each memory looked) and demo.json. A few minutes on two cores.

`tessera demo language` trains a Memory Mosaic and the transformer of equal size on the same stories instead, and
compares them: runs/demo then has both runs, loss.png, samples.txt and demo.json; on a slower machine both train for
fewer steps, so that it ends within --minutes.
"""

import argparse
from pathlib import Path

from tessera.base.errors import expect
from tessera.cli.options import positive_float, whole_number

PROMPT = "Once upon a time there was a king who had three daughters, and the youngest"
OWN_OPTIONS = {"books": ("books", "seed"), "language": ("minutes", "prompt")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera demo`."""
    add = parser.add_argument
    meaning = "`books` (the default) or `language`, then changes to its recipes, such as training.batch_size=4"
    add("overrides", nargs="*", default=[], metavar="[DEMO] key=value", help=meaning)
    add("--output", type=Path, default=Path("runs/demo"), help="write everything into this folder (default: runs/demo)")
    meaning = "books: read these texts (default: two novels that come with the library)"
    add("--books", type=Path, nargs="+", metavar="FILE", help=meaning)
    add("--seed", type=whole_number, help="books: decides which passwords are hidden, and where (default: 0)")
    add("--minutes", type=positive_float, help="language: train for at most so many minutes (default: 5.5)")
    add("--prompt", help="language: the text that both models continue at the end")


def run(arguments: argparse.Namespace) -> int:
    """Train, then write and print what came out."""
    names_demo = arguments.overrides[:1] and "=" not in arguments.overrides[0]
    which, *overrides = arguments.overrides if names_demo else ["books", *arguments.overrides]
    expect(which in OWN_OPTIONS, "demo", "the demo", "be books or language", which)
    output = arguments.output
    is_strange = output.is_dir() and any(output.iterdir()) and not (output / "demo.lock").exists()
    needed, strange = "be new, or an earlier demo's folder", f"{output}, which holds other files"
    expect(not is_strange, "demo", "--output", needed, strange)
    (other,) = OWN_OPTIONS.keys() - {which}
    for name in OWN_OPTIONS[other]:
        value = getattr(arguments, name)
        expect(value is None, "demo", f"--{name}", f"come with `tessera demo {other}`", value)
    if which == "language":
        from tessera.tools.language_demo import language_demo

        minutes, prompt = arguments.minutes or 5.5, PROMPT if arguments.prompt is None else arguments.prompt
        language_demo(arguments.output, overrides, minutes, prompt)
    else:
        from tessera.papers.passwords.demo import bundled_books, demo

        demo(arguments.output, overrides, arguments.books or bundled_books(), arguments.seed or 0)
    return 0
