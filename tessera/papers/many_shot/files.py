"""Labelled texts from the public files of Banking77, GoEmotions and TACRED."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tessera.base.errors import TesseraError, expect

BANKING77 = Path(__file__).parents[2] / "data" / "banking77"


class Example(NamedTuple):
    """A text and its label; `details`: (name, text) pairs that a template may write (TACRED's two entities)."""

    text: str
    label: str
    details: tuple[tuple[str, str], ...] = ()


def read_examples(kind: str, path: Path) -> list[Example]:
    """The examples of a file of one of `READERS`.

    Raises:
        TesseraError: the file is missing, or not of this form.
    """
    examples = READERS[kind](path, _text(path))
    if not examples:
        raise TesseraError(f"{path}: must hold labelled texts; got none.")
    return examples


def _banking77(path: Path, text: str) -> list[Example]:
    """`train.csv` or `test.csv`: CSV with the header `text,category`."""
    rows = csv.DictReader(io.StringIO(text))
    expect(rows.fieldnames == ["text", "category"], str(path), "it", "be CSV with the header text,category",
           rows.fieldnames)  # fmt: skip
    examples = []
    try:
        for row in rows:
            is_whole = bool(row["text"] and row["category"])
            expect(is_whole, str(path), f"line {rows.line_num}", "hold a text and a category", row)
            examples.append(Example(" ".join(row["text"].split()), row["category"]))
    except csv.Error as error:
        raise TesseraError(f"{path}: cannot be read as CSV ({error}).") from None
    return examples


def _goemotions(path: Path, text: str) -> list[Example]:
    """The examples with a single label of `train.tsv`, `dev.tsv` or `test.tsv`; `labels.txt` lies beside.

    Tab-separated without quoting: text, numbers of the labels (lines of `labels.txt` from 0, separated by commas), id;
    a header `text label id` is skipped (the original files have none, and call the labels `emotions.txt`).
    """
    paths = [path.parent / name for name in ("labels.txt", "emotions.txt")]
    names = _text(next((labels for labels in paths if labels.exists()), paths[0])).split()
    examples = []
    for number, line in enumerate(text.removesuffix("\n").split("\n") if text else (), 1):
        fields = line.split("\t")
        if fields == ["text", "label", "id"]:
            continue
        labels = fields[1].split(",") if len(fields) == 3 else []
        is_whole = bool(labels) and all(label.isdigit() and int(label) < len(names) for label in labels)
        needed = f"be text, labels below {len(names)} and id, separated by tabs"
        expect(is_whole, str(path), f"line {number}", needed, repr(line[:60]))
        if len(labels) == 1:
            examples.append(Example(fields[0].strip(), names[int(labels[0])]))
    return examples


def _tacred(path: Path, text: str) -> list[Example]:
    """TACRED's `train.json`, `dev.json` or `test.json` (licensed by the LDC).

    A JSON list of objects with `token`, `relation`, `subj_start`, `subj_end`, `obj_start`, `obj_end` (inclusive).
    """
    examples = []
    try:
        for row in json.loads(text):
            spans = (("subject", row["subj_start"], row["subj_end"]), ("object", row["obj_start"], row["obj_end"]))
            details = tuple((name, " ".join(row["token"][start : end + 1])) for name, start, end in spans)
            examples.append(Example(" ".join(row["token"]), row["relation"], details))
    except (ValueError, KeyError, TypeError) as error:
        raise TesseraError(f"{path}: must be a JSON list of TACRED's relations; got {error!r}.") from None
    return examples


READERS: dict[str, Callable[[Path, str], list[Example]]] = {
    "banking77": _banking77,
    "goemotions": _goemotions,
    "tacred": _tacred,
}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TesseraError(f"{path}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise TesseraError(f"{path}: must be text in UTF-8; got {error.reason}.") from None


def by_label(examples: list[Example]) -> dict[str, list[Example]]:
    """The examples of each label, labels in alphabetical order."""
    groups: dict[str, list[Example]] = {}
    for example in examples:
        groups.setdefault(example.label, []).append(example)
    return dict(sorted(groups.items()))
