"""Labelled texts from the public files of Banking77, GoEmotions and TACRED."""

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tessera.base.errors import TesseraError

BANKING77 = Path(__file__).parents[2] / "data" / "banking77"


@dataclass(frozen=True)
class Example:
    """A text and its label; `details`: (name, text) pairs that a template may write (TACRED's two entities)."""

    text: str
    label: str
    details: tuple[tuple[str, str], ...] = ()


def read_banking77(path: Path) -> list[Example]:
    """The examples of `train.csv` or `test.csv`: CSV with the header `text,category`.

    Raises:
        TesseraError: the file is missing, or has other columns.
    """
    with _opened(path) as file:
        rows = csv.DictReader(file)
        if rows.fieldnames != ["text", "category"]:
            raise TesseraError(f"{path}: must be CSV with the header text,category; got {rows.fieldnames}.")
        examples = []
        for row in rows:
            if not row["text"] or not row["category"]:
                raise TesseraError(f"{path}: line {rows.line_num} must hold a text and a category; got {row}.")
            examples.append(Example(" ".join(row["text"].split()), row["category"]))
    return _some(path, examples)


def read_goemotions(path: Path) -> list[Example]:
    """The examples with a single label of `train.tsv`, `dev.tsv` or `test.tsv`; `labels.txt` lies beside.

    Tab-separated without quoting: text, numbers of the labels (lines of `labels.txt` from 0, separated by commas), id;
    a header `text label id` is skipped (the original files have none, and call the labels `emotions.txt`).

    Raises:
        TesseraError: a file is missing, or a line is not of this form.
    """
    places = [path.parent / name for name in ("labels.txt", "emotions.txt")]
    with _opened(next((place for place in places if place.exists()), places[0])) as file:
        names = file.read().split()
    examples = []
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            fields = line.rstrip("\n").split("\t")
            if fields == ["text", "label", "id"]:
                continue
            labels = fields[1].split(",") if len(fields) == 3 else []
            if not labels or not all(label.isdigit() and int(label) < len(names) for label in labels):
                raise TesseraError(
                    f"{path}: line {number} must be text, labels below {len(names)} and id, separated by tabs; "
                    f"got {line[:60]!r}."
                )
            if len(labels) == 1:
                examples.append(Example(fields[0].strip(), names[int(labels[0])]))
    return _some(path, examples)


def read_tacred(path: Path) -> list[Example]:
    """The examples of TACRED's `train.json`, `dev.json` or `test.json` (licensed by the LDC).

    A JSON list of objects with `token`, `relation`, `subj_start`, `subj_end`, `obj_start`, `obj_end` (inclusive).

    Raises:
        TesseraError: the file is missing, or an entry is not of this form.
    """
    with _opened(path) as file:
        try:
            rows = json.load(file)
            examples = [_relation(row) for row in rows]
        except UnicodeDecodeError:  # said by `_opened`
            raise
        except (ValueError, KeyError, TypeError) as error:
            raise TesseraError(f"{path}: must be a JSON list of TACRED's relations; got {error!r}.") from None
    return _some(path, examples)


def _relation(row: dict) -> Example:
    words = row["token"]
    entities = {
        name: " ".join(words[row[f"{key}_start"] : row[f"{key}_end"] + 1])
        for name, key in (("subject", "subj"), ("object", "obj"))
    }
    return Example(" ".join(words), row["relation"], tuple(entities.items()))


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """The file as text; `TesseraError` where it cannot be read, also in the middle."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            yield file
    except OSError as error:
        raise TesseraError(f"{path}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise TesseraError(f"{path}: must be text in UTF-8; got {error.reason}.") from None
    except csv.Error as error:
        raise TesseraError(f"{path}: cannot be read as CSV ({error}).") from None


def _some(path: Path, examples: list[Example]) -> list[Example]:
    if not examples:
        raise TesseraError(f"{path}: must hold labelled texts; got none.")
    return examples


READERS = {"banking77": read_banking77, "goemotions": read_goemotions, "tacred": read_tacred}


def by_label(examples: list[Example]) -> dict[str, list[Example]]:
    """The examples of each label, labels in alphabetical order."""
    groups: dict[str, list[Example]] = {}
    for example in examples:
        groups.setdefault(example.label, []).append(example)
    return dict(sorted(groups.items()))
