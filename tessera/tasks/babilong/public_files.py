"""The public benchmark's own files: one sample per row, as text."""

import json
from dataclasses import dataclass
from pathlib import Path

from tessera.errors import TesseraError

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
        TesseraError: the file is missing or no JSON, a row lacks a field, or there is no row.
    """
    try:
        text = path.read_text(encoding="utf-8")
        is_list = text.lstrip().startswith("[")
        rows = json.loads(text) if is_list else [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise TesseraError(f"{path}: must be a JSON list or JSON lines of samples; got {error}.") from None
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in FIELDS):
            raise TesseraError(f"{path}: row {number} must hold the texts {', '.join(FIELDS)}; got {str(row)[:80]}.")
    if not rows:
        raise TesseraError(f"{path}: must hold at least one sample; got none.")
    return [TextSample(*(row[name] for name in FIELDS)) for row in rows]
