"""The public benchmark's own files: one sample per row, as text."""

import json
from dataclasses import dataclass
from pathlib import Path

from tessera.base.errors import TesseraError

FIELDS = ("input", "question", "target")


@dataclass(frozen=True)
class TextSample:
    """A context with facts in it, a question, and its answer."""

    input: str
    question: str
    target: str


def read_samples(path: Path) -> list[TextSample]:
    """The samples of a file: a JSON list of rows, or JSON lines, with the texts `input`, `question` and `target`.

    Raises:
        TesseraError: the file is missing or no JSON, a row lacks one of the texts, or there is no row.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        # Not splitlines: a string may hold other separators of lines, such as U+2028.
        is_list = text.lstrip().startswith("[")
        rows = json.loads(text) if is_list else [json.loads(line) for line in text.split("\n") if line.strip()]
    except (OSError, ValueError, RecursionError) as error:
        raise TesseraError(f"{path}: must be a JSON list or JSON lines of samples; got {error}.") from None
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not all(_is_text(row.get(name)) for name in FIELDS):
            raise TesseraError(f"{path}: row {number} must hold the texts {', '.join(FIELDS)}; got {repr(row)[:80]}.")
    if not rows:
        raise TesseraError(f"{path}: must hold at least one sample; got none.")
    return [TextSample(*(row[name] for name in FIELDS)) for row in rows]


def _is_text(value: object) -> bool:
    """Whether it is a string with something in it that can be written as UTF-8 (a lone surrogate cannot)."""
    if not isinstance(value, str) or not value.strip():
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
