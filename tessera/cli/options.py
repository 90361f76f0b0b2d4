"""Types of options that verbs share, which refuse a text in one line, and the way back from arguments to a command."""

import argparse
import io
import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tessera.base.dataclass_io import to_json
from tessera.base.errors import TesseraError, expect, expect_text
from tessera.base.files import expect_output, write_text_atomically, writing

OUTPUT_HELP = "write one JSON line for each question into this new file: the question, the answer, and its score"
PIECE = 1 << 16  # characters of standard input that are read at once
LARGEST_COUNT = 2**31 - 1
LARGEST_SEED = 2**32 - 1  # of numpy's generators


def integer(low: int, high: int = LARGEST_COUNT) -> Callable[[str], int]:
    """Whole numbers in low..high."""

    def requirement(number: int) -> str | None:
        return f"be at least {low}" if number < low else f"be at most {high}" if number > high else None

    return _number(int, "a whole number", requirement)


def real(low: float, high: float = math.inf, *, above: bool = False) -> Callable[[str], float]:
    """Finite numbers from `low` (excluded if `above`) to `high`."""
    least = f"be {'above' if above else 'at least'} {low:g}"
    interval = least if math.isinf(high) else f"lie in {'(' if above else '['}{low:g}, {high:g}]"

    def requirement(number: float) -> str | None:
        is_inside = low <= number <= high and math.isfinite(number) and not (above and number == low)
        return None if is_inside else f"{interval} and be finite"

    return _number(float, "a number", requirement)


def _number(kind: type, words: str, requirement: Callable) -> Callable:
    """A type for argparse: numbers of `kind`, for which `requirement(number)` says what they must do and do not."""

    def parse(text: str) -> Any:
        """The number that `text` is, or argparse's error with the requirement that it breaks."""
        try:
            number = kind(text)
        except ValueError:  # also more digits than Python converts
            raise argparse.ArgumentTypeError(f"must be {words}; got {_short(text)}") from None
        broken = requirement(number)
        if broken is not None:
            shown = _short(text) if len(text) > 40 else f"{number:g}" if kind is float else number
            raise argparse.ArgumentTypeError(f"must {broken}; got {shown}")
        return number

    return parse


def memory_size(text: str) -> int:
    """Bytes: a number with a unit, of thousands (kB, MB, GB, TB) or of 1,024 (KiB, MiB, GiB, TiB).

    >>> memory_size("80GB"), memory_size("1.5GiB")
    (80000000000, 1610612736)
    """
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)([kKMGT])(i?)B", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"must be a number with its unit, such as 80GB or 80GiB; got {_short(text)}")
    number, prefix, is_binary = match.groups()
    size = int(float(number) * (1024 if is_binary else 1000) ** ("KMGT".index(prefix.upper()) + 1))
    if size < 1:
        raise argparse.ArgumentTypeError(f"must be at least one byte; got {_short(text)}")
    return size


def image_file(text: str) -> Path:
    """The name of a figure, whose ending says its format."""
    if not text.lower().endswith((".png", ".svg", ".pdf")):
        raise argparse.ArgumentTypeError(f"must end in .png, .svg or .pdf; got {_short(text)}")
    return Path(text)


def repeated(verb: str, arguments: argparse.Namespace, *flags: str) -> str:
    """The command that goes on with a recipe of these arguments, as a user would type it; `flags` stand at its end."""
    words = ["tessera", verb, arguments.recipe, *arguments.overrides]
    words += [] if arguments.output is None else ["--output", str(arguments.output)]
    words += [word for name in arguments.imports for word in ("--import", name)]
    return shlex.join([*words, *flags])


positive_int = integer(1)
whole_number = integer(0)
num_examples = integer(1, 1_000_000)  # they are kept until all are scored
context_length = integer(2)  # one token to read, one to predict
seed = integer(0, LARGEST_SEED)
positive_float = real(0, above=True)
temperature = real(0)
probability = real(0, 1, above=True)
decay = real(0, 1)


def _short(text: str) -> str:
    return f"{text[:40]!r}..." if len(text) > 40 else repr(text)


def standard_texts(where: str, by_line: bool = False) -> Iterator[str]:
    """Standard input as UTF-8, whatever the locale says: in pieces, or line by line behind a prompt.

    Raises `TesseraError` where there is none, at once, and later where it is no text.
    """
    stream = sys.stdin
    if stream is None or stream.closed:
        raise TesseraError(f"{where}: standard input must be open; got a closed one.")
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8-sig", errors="strict")

    def texts() -> Iterator[str]:
        """Pieces or lines until the input ends; before a line that a person types, a prompt."""
        is_typed = by_line and stream.isatty()
        while True:
            if is_typed:
                print("> ", end="", file=sys.stderr, flush=True)
            try:
                text = stream.readline() if by_line else stream.read(PIECE)
            except UnicodeDecodeError as error:
                raise TesseraError(f"{where}: standard input must be text in UTF-8 ({error.reason}).") from None
            if not text:
                return
            expect_text(text, f"{where}: standard input")
            yield text

    return texts()


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """The arguments of a verb that reads a recipe."""
    parser.add_argument("recipe", help="a recipe file (YAML), or the name of a recipe that comes with the library")
    text = "change this key of the recipe, such as training.steps=100; --help-recipe of tessera train lists all keys"
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=text)


def add_measured_models(parser: argparse.ArgumentParser, rows: str) -> None:
    """The arguments of a verb that measures models, which read so many `rows` (in words) at once."""
    add = parser.add_argument
    add("models", nargs="+", metavar="model", help="folder of a model and its tokenizer; several are set side by side")
    add("--batch-size", type=positive_int, default=8, help=f"{rows} that are read at once (default: 8)")
    meaning = "switch the long-term memories off, to see what they do (v2 models)"
    add("--without-long-term-memory", action="store_true", help=meaning)
    add("--json", action="store_true", help="print JSON that also says how it was measured")
    add("--output", type=Path, metavar="FILE", help=OUTPUT_HELP)


def of_each(
    names: Iterable[str], result_of: Callable[[str], Any], after_each: Callable[[], None] = lambda: None
) -> tuple[list[Any], int]:
    """What `result_of` gives for each name, and the exit status. Of several names one that is refused does not stop the
    others: it is said, and the status is 2. An error of `after_each` stops them."""
    names, results, status = list(names), [], 0
    for name in names:
        try:
            results.append(result_of(name))
        except TesseraError as error:
            if len(names) == 1:
                raise
            print(error if name in str(error) else f"{name}: {error}", file=sys.stderr)
            status = 2
        after_each()
    return results, status


def hold_output(arguments: argparse.Namespace, where: str, name: str) -> None:
    """`expect_output` of a new file, which no other process may make until the verb has ended.

    Raises `TesseraError`: it exists, cannot be written, or another process is about to write it.
    """
    from tessera.base.locks import held

    path, option = getattr(arguments, name), f"--{name}"
    expect_output(path, where, option)
    if path is not None:
        lock = held(path.with_name(f"{path.name}.lock"), f"Use another {option}.", stays=False)
        with writing(path):
            arguments.until_end.enter_context(lock)
        expect_output(path, where, option)  # who held it may have written it meanwhile


def refuse_options(arguments: argparse.Namespace, where: str, names: Iterable[str], unless: str) -> None:
    """Raise `TesseraError` for an option among `names` that is given where it would say nothing."""
    for name in names:
        value = getattr(arguments, name)
        expect(value in (None, False, []), where, "--" + name.replace("_", "-"), f"be left out {unless}", value)


def expect_two_files(arguments: argparse.Namespace, where: str, name: str, other: str) -> None:
    """Raise `TesseraError` where two outputs are one file: the second would take the place of the first."""
    first, second = getattr(arguments, name), getattr(arguments, other)
    is_one = first is not None and second is not None and first.resolve() == second.resolve()
    expect(not is_one, where, f"--{name}", f"be another file than --{other}", repr(str(first)))


def measured_model(folder: str, arguments: argparse.Namespace) -> tuple[Any, bool | None]:
    """A model of `add_measured_models`; whether long-term memories take part (None: it has no such thing)."""
    from tessera.models.causality import expect_next_token
    from tessera.models.saving.loading import load_model

    model = load_model(folder, long_term_memory=not arguments.without_long_term_memory)
    expect_next_token(model, f"model {folder}")
    return model, getattr(model.config, "recalls_long_term", None)


def write_json_lines(path: Path | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """A line for each of `rows`, all of them or none; NaN is null. Without a path or a row, no file."""
    if path is not None and rows:
        write_text_atomically(path, "".join(json.dumps(to_json(row)) + "\n" for row in rows))
