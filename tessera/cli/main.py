"""The command line: `tessera VERB ...`. Every verb is a module with `add_arguments(parser)` and `run(arguments)`."""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from tessera.errors import TesseraError

USER_ERROR, INTERRUPTED = 2, 130
# verb -> module; the first line of the module's docstring is the verb's help. A new verb is a new line here.
VERBS = {
    "train": "tessera.cli.train",
    "generate": "tessera.cli.generate",
    "eval": "tessera.cli.evaluate",
    "info": "tessera.cli.info",
    "convert": "tessera.cli.convert",
    "demo": "tessera.cli.demo",
    "memorize": "tessera.cli.memorize",
    "ask": "tessera.cli.ask",
    "tasks": "tessera.cli.tasks",
    "reproduce": "tessera.cli.reproduce",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Exit status: 0, 2 after a user's mistake (its message on stderr), 130 when interrupted."""
    parsed = make_parser().parse_args(arguments)
    _quieten_libraries()
    try:
        return importlib.import_module(VERBS[parsed.verb]).run(parsed) or 0
    except TesseraError as error:
        print(error, file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as in `tessera info ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def make_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    parser = argparse.ArgumentParser(
        prog="tessera",
        description="Sequence models made of associative memories: train them, sample from them, measure them.",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, name in VERBS.items():
        module = importlib.import_module(name)
        summary = (module.__doc__ or "").strip()
        child = verbs.add_parser(
            verb,
            help=summary.splitlines()[0],
            description=summary,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(child)
    return parser


def _quieten_libraries() -> None:
    """The verbs say what there is to say; transformers' own notices and bars would break the progress line."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


if __name__ == "__main__":
    sys.exit(main())
