"""Errors for users: one line that says where, what was expected, what came, and what to do."""

import difflib
import os
import re
from collections.abc import Iterable

NUL = "\0"


class TesseraError(ValueError):
    """A mistake the user can correct. The command line prints its message alone and exits with status 2."""


class TrainingInterrupted(KeyboardInterrupt):
    """A run was stopped by Ctrl-C or SIGTERM after it had written a checkpoint. Its text names the run and the step."""


def expect(condition: bool, where: str, argument: str, requirement: str, got: object, advice: str = "") -> None:
    """Raise `TesseraError("{where}: {argument} must {requirement}; got {got}. {advice}")` unless `condition` holds.

    >>> expect(False, "MemoryMosaicConfig", "num_heads", "divide hidden_size (384)", 5)
    Traceback (most recent call last):
        ...
    tessera.base.errors.TesseraError: MemoryMosaicConfig: num_heads must divide hidden_size (384); got 5.
    """
    if not condition:
        raise TesseraError(f"{where}: {argument} must {requirement}; got {got}." + (f" {advice}" if advice else ""))


def head_width(where: str, hidden_size: int, num_heads: int, parts: int = 1) -> int:
    """`hidden_size / num_heads`. Raises `TesseraError` unless it is a whole number of `parts`."""
    divides = num_heads >= 1 and hidden_size >= 1 and hidden_size % (num_heads * parts) == 0
    share = "" if parts == 1 else f" / {parts}"
    expect(divides, where, "num_heads", f"divide hidden_size{share} ({hidden_size / parts:g})", num_heads)
    return hidden_size // num_heads


def expect_text(text: str, where: str) -> None:
    """Raise `TesseraError` for what no tokenizer takes (half of a surrogate pair, or no text), and for NUL in a text.

    UTF-16 that was read as UTF-8 has a NUL behind, or before, each letter of a Western language.
    """
    expect(isinstance(text, str), where, "the text", "be text", type(text).__name__)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        got = f"half of a surrogate pair (character {error.start})"
        raise TesseraError(f"{where}: the text must be text; got {got}.") from None
    got, advice = f"one (character {text.find(NUL)})", "If it is UTF-16, iconv -f UTF-16LE -t UTF-8 converts it."
    expect(NUL not in text, where, "the text", "be without NUL", got, advice)


def first_line(error: BaseException) -> str:
    """What an exception of another library or the system says, in one line without its full stop and the system's
    number; its name when it says nothing.

    >>> first_line(FileNotFoundError(2, "No such file or directory", "book.txt"))
    "No such file or directory: 'book.txt'"
    """
    lines = re.sub(r"^\[(Errno|WinError) -?\d+\] ", "", str(error).strip()).splitlines()
    missing = re.match("No such file or directory: '?(.*?)'?$", lines[0]) if lines else None
    if missing and os.path.exists(missing[1]):  # what safetensors says whatever the system said
        return f"cannot be opened: {missing[1]!r}; may you read it?"
    return lines[0].rstrip(".") if lines else type(error).__name__


def is_out_of_memory(error: Exception) -> bool:
    """Whether it is Python's, a GPU's, or what PyTorch says on CPUs, where it has no class of its own."""
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    signs = ("can't allocate memory", "not enough memory", "Storage size calculation overflowed")
    return named or any(sign in str(error) for sign in signs)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`Did you mean 'x'?` when some known name is close to `name`, and the list of known names in any case."""
    known = sorted(map(str, known))
    close = difflib.get_close_matches(str(name), known, n=1)
    guess = f"Did you mean {close[0]!r}? " if close else ""
    return f"{guess}Known: {', '.join(known)}."
