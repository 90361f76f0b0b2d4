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
LANGUAGE, BOOKS = ("minutes", "prompt"), ("books", "seed")  # options of one demo alone


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera demo`."""
    add = parser.add_argument
    add("what", nargs="?", choices=("books", "language"), default="books", help="which demo (default: books)")
    meaning = "change this key of its recipe, of `language` of both recipes, such as training.batch_size=4"
    add("overrides", nargs="*", default=[], metavar="key=value", help=meaning)
    add("--output", type=Path, default=Path("runs/demo"), help="write everything into this folder (default: runs/demo)")
    meaning = "books: read these texts (default: two novels that come with the library)"
    add("--books", type=Path, nargs="+", metavar="FILE", help=meaning)
    add("--seed", type=whole_number, help="books: decides which passwords are hidden, and where (default: 0)")
    add("--minutes", type=positive_float, help="language: train for at most so many minutes (default: 5.5)")
    add("--prompt", help="language: the text that both models continue at the end")


def run(arguments: argparse.Namespace) -> int:
    """Train, then write and print what came out."""
    is_language = arguments.what == "language"
    for name in BOOKS if is_language else LANGUAGE:
        other = "books" if is_language else "language"
        given = getattr(arguments, name)
        expect(given is None, "demo", f"--{name}", f"come with `tessera demo {other}`", repr(given))
    if is_language:
        from tessera.tools.language_demo import LanguageDemo

        minutes, prompt = arguments.minutes or 5.5, PROMPT if arguments.prompt is None else arguments.prompt
        LanguageDemo(arguments.output, arguments.overrides, minutes, prompt).run()
    else:
        from tessera.papers.passwords.demo import Demo, bundled_books

        books = arguments.books or bundled_books()
        Demo(arguments.output, arguments.overrides, books, arguments.seed or 0).run()
    return 0
