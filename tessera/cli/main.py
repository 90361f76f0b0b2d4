"""The command line: `tessera VERB ...`. Every verb is a module with `add_arguments(parser)` and `run(arguments)`.

The modules of the verbs import nothing that imports torch, transformers or numpy at their top; what needs these is
imported inside `run`. So `--help` and every mistake in the arguments answer before that, which takes seconds.
"""

import argparse
import importlib
import io
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NoReturn

import tessera
from tessera.base import plugins
from tessera.base.errors import TesseraError, first_line, is_out_of_memory

USER_ERROR, INTERRUPTED = 2, 130
SECONDS_FOR_THE_FIRST = 3
OVERRIDE = re.compile(r"[A-Za-z_][\w.]*=")
# Each is the module `tessera.cli.VERB`, whose docstring's first line is the verb's help. In the order of `--help`.
VERBS = (
    "train generate eval prompts info check plan compare sweep convert models demo memorize memories ask chat inspect "
    "tasks reproduce"
).split()


class _Parser(argparse.ArgumentParser):
    """Reports a mistake as this library does: in one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        """See `ArgumentParser`; raises `TesseraError`, which `main` prints."""
        message = " ".join(message.split()).removesuffix(".")
        message = re.sub(r"^argument (\S+): must ", r"\1 must ", message)
        raise TesseraError(f"{self.prog}: {message}. See {self.prog} --help.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. Exit status: 0, 2 after a user's mistake (its message on stderr), 130 when interrupted.

    With TESSERA_DEBUG in the environment a mistake's traceback stands before its message.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # a terminal without a character shows ?
    try:
        _expect_text(arguments)
        parsed = _parse(arguments)
        _quieten_libraries()
        _share_cores()
        with _signals_as_exceptions(), ExitStack() as parsed.until_end:
            for name in parsed.imports:
                plugins.import_file(name)
            status = importlib.import_module(f"tessera.cli.{parsed.verb}").run(parsed) or 0
        if sys.stdout is not None:
            sys.stdout.flush()
        return status
    except TesseraError as error:
        _trace()
        if os.environ.get("RANK", "0") != "0":
            time.sleep(SECONDS_FOR_THE_FIRST)  # torchrun ends this process meanwhile, if the first one says the same
        print(error, file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or "interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as in `tessera info ... | head`
        _flush_or_abandon_output()
        return 0
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        print(f"tessera: out of memory ({first_line(error)[:200]}). Use a smaller batch or model.", file=sys.stderr)
        return USER_ERROR
    except OSError as error:  # a full disk, a name that is too long, a folder without permission
        _trace()
        _flush_or_abandon_output()
        path = f": {error.filename}" if error.filename else ""
        print(f"tessera: {error.strerror or error}{path}"[:400], file=sys.stderr)
        return USER_ERROR


def _trace() -> None:
    if os.environ.get("TESSERA_DEBUG"):
        traceback.print_exc()


def make_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    parser = _Parser(
        prog="tessera",
        description="Sequence models made of associative memories: train them, sample from them, measure them.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tessera {tessera.__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)
    for verb in VERBS:
        module = importlib.import_module(f"tessera.cli.{verb}")
        summary = (module.__doc__ or "").strip()
        child = verbs.add_parser(
            verb,
            help=summary.splitlines()[0],
            description=summary,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,  # --over must not overwrite
        )
        module.add_arguments(child)
        meaning = "first import this Python file or module with kernels, tasks, models or texts of your own"
        child.add_argument("--import", dest="imports", action="append", default=[], metavar="FILE", help=meaning)
    return parser


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments. `key=value` may also follow an option, where argparse takes no further positional arguments."""
    parser = make_parser()
    parsed, rest = parser.parse_known_args(arguments)
    if rest:
        if "overrides" not in parsed or not all(OVERRIDE.match(argument) for argument in rest):
            parser.prog = f"{parser.prog} {parsed.verb}"  # whose help says what there is
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        parsed.overrides = [*parsed.overrides, *rest]
    return parsed


def _expect_text(arguments: Sequence[str]) -> None:
    """Arguments that no file system or tokenizer takes are refused before anybody meets them."""
    for argument in arguments:
        if "\0" in argument:
            raise TesseraError(f"tessera: arguments must not contain NUL; got {argument[:60]!r}.")
        if not argument.isascii() and any("\ud800" <= character <= "\udfff" for character in argument):
            raise TesseraError(f"tessera: arguments must be text in UTF-8; got {argument[:60]!r}.")


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """A scheduler's SIGTERM, or a terminal that closes, ends the verb as an exception: half a file is deleted.

    Exit status 128 + its number, as a shell has it. Signals that somebody else handles, or ignores, stay theirs.
    """

    def end(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    numbers = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    is_main = threading.current_thread() is threading.main_thread()
    ours = [number for number in numbers if is_main and signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _flush_or_abandon_output() -> None:
    """If what is in the buffer of standard output cannot be written, Python must not try again at exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _quieten_libraries() -> None:
    """The verbs say what there is to say; transformers' own notices and bars would break the progress line.

    It reads these settings when it is imported, which is still to come, except where `main` is called from Python.
    """
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # each try to reach the hub would be a warning
    if "transformers" in sys.modules:
        logging = importlib.import_module("transformers.utils.logging")
        logging.set_verbosity_error()
        logging.disable_progress_bar()


def _share_cores() -> None:
    """Threads that wait for others give their core away sooner, unless the user's environment says how they wait.

    After each operation PyTorch's threads wait for the slowest; by default they keep their core busy meanwhile. If
    another program needs that core, the thread that all wait for does not get it either. libgomp, which runs the
    threads on Linux, reads this when PyTorch is imported; other systems ignore it.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")


if __name__ == "__main__":
    sys.exit(main())
