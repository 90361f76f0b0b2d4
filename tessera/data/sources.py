"""Where text comes from: the bundled stories and novels, local files, a Hugging Face dataset, or code of yours.

A source yields documents, a document yields pieces of text, and nothing larger than a piece has to fit in memory.
"""

import glob
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from tessera.base import plugins
from tessera.base.checkpoints import checksum
from tessera.base.errors import TesseraError, did_you_mean, expect, expect_text, first_line
from tessera.base.registry import Registry
from tessera.data.text_files import documents_of_file, documents_of_json_lines, safe_pieces

STORIES = Path(__file__).parent / "stories"
BUNDLED = {"stories": STORIES} | {name: Path(__file__).parent / name for name in ("novels", "test_books")}
VALIDATION_STORIES = ("the_grey_fairy_book_6746.txt",)
HUB_PREFIX = "hf://"
# How the names of files end that a folder is read for, in any case, also with .gz behind.
TEXT_ENDINGS = (".txt", ".text")
JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
FILE_ENDINGS = (*TEXT_ENDINGS, *JSON_ENDINGS, ".gz", ".md", ".csv", ".tsv", ".pdf", ".docx", ".html", ".xml")
_HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*/[\w.-]+$")

Document = Iterator[str]


class NoTextFileError(TesseraError):
    """Nothing of a name is a text file."""


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextSource:
    """Documents in a fixed order.

    `name` is what error messages call it; `documents()` starts a new pass; `identity` (values of JSON) changes when the
    text does, so that a store made from other text is never taken for this one's. `has_splits`: there is a validation
    split beside. `files`: (name, `content`) of each that it is read from.
    """

    name: str
    documents: Callable[[], Iterator[Document]]
    identity: tuple[object, ...]
    has_splits: bool = False
    files: tuple[tuple[str, tuple[int, int]], ...] = ()

    def pieces(self) -> Iterator[str]:
        """All text, document borders ignored."""
        for document in self.documents():
            yield from document


#: Functions of a split that return its text, by the name that `data.source` of a recipe says.
SOURCES: Registry[Callable[[str], TextSource]] = Registry("data source", "tessera.sources")


def text_source(
    spec: str | Sequence[str],
    split: str = "train",
    *,
    text_column: str = "text",
    subset: str | None = None,
    separator: str | None = None,
    format: str = "text",
) -> TextSource:
    """The text that `spec` names.

    Args:
        spec: "stories", "novels" or "test_books" (bundled: nine books, the beginnings of two, and both with fifteen
            others, whole); a file, a folder (the text files in it and below) or a glob; a list of those; or a Hugging
            Face dataset: `owner/name`, or `hf://` and any name or path that `datasets.load_dataset` takes; or a name in
            `SOURCES`. Files may be packed by gzip.
        split: "train", "validation", ...: the books of `stories`, or the dataset's split. Files have no splits.
        text_column, subset: of a Hugging Face dataset; `text_column` also of JSON lines.
        format: of your files: "text", or "json_lines" (each line a JSON text, or an object with `text_column`), which
            files that end in .jsonl, .ndjson or .json must be.
        separator: between documents in a file, for example `<|endoftext|>`; None: a file is a document.
    Raises `TesseraError` when the text does not exist or cannot be read.
    """
    expect(format in ("text", "json_lines"), "text_source", "format", "be text or json_lines", repr(format))
    if isinstance(spec, str) and spec in SOURCES:
        return _registered_source(spec, split)
    if spec == "stories":
        return replace(_file_source("stories", story_files(split), separator), has_splits=True)
    if isinstance(spec, str) and (spec.startswith(HUB_PREFIX) or (format == "text" and _is_hub_name(spec))):
        return _dataset_source(spec.removeprefix(HUB_PREFIX), subset, split, text_column)
    name = spec if isinstance(spec, str) else ", ".join(spec)
    if format == "json_lines" and not (isinstance(spec, str) and spec in BUNDLED):
        return _file_source(name, text_files(spec, JSON_ENDINGS), separator, text_column)
    files = text_files(spec)
    lines = next((file.name for file in files if file.name.lower().removesuffix(".gz").endswith(JSON_ENDINGS)), None)
    advice = "Or rename it, where its brackets and keys are the text that is meant."
    expect(lines is None, f"data source {name!r}", "format", f"be json_lines for {lines}", "text", advice)
    return _file_source(name, files, separator)


def story_files(split: str) -> list[Path]:
    """The bundled books of a split: `train` or `validation`."""
    if split not in ("train", "validation"):
        raise TesseraError(f"stories: split must be train or validation; got {split!r}.")
    books = sorted(STORIES.glob("*.txt"))
    return [book for book in books if (book.name in VALIDATION_STORIES) == (split == "validation")]


def text_files(source: str | Sequence[str], endings: tuple[str, ...] = TEXT_ENDINGS) -> list[Path]:
    """The text files that `source` names: "stories", "novels" or "test_books" (all), a file, a folder, a glob, a list.

    Of a folder: those in it and below whose names end in `endings`; a warning names what is left out.
    Raises `NoTextFileError` for a name without a file, `TesseraError` for what the system does not let read.
    """
    bundled = BUNDLED.get(source) if isinstance(source, str) else None
    if bundled is not None:
        return sorted([*bundled.glob("*.txt"), *bundled.glob("*.txt.gz")])
    try:
        return [file for name in ([source] if isinstance(source, str) else source) for file in _files(name, endings)]
    except PermissionError as error:
        raise TesseraError(f"{error.filename}: cannot be read ({error.strerror}).") from None


def _registered_source(name: str, split: str) -> TextSource:
    where, source = f"data source {name!r}", SOURCES[name](split)
    expect(name not in BUNDLED, where, "its name", f"be none of {', '.join(BUNDLED)}", name)
    expect(isinstance(source, TextSource), where, "its function", "return a TextSource", type(source).__name__)
    try:
        json.dumps(source.identity)
    except (TypeError, ValueError):
        expect(False, where, "its identity", "be of values that JSON has", repr(source.identity))

    def documents() -> Iterator[Document]:
        for document in source.documents():
            yield safe_pieces(checked([document] if isinstance(document, str) else document))

    def checked(pieces: Iterable[str]) -> Document:
        for piece in pieces:
            expect_text(piece, where)
            yield piece

    return replace(source, documents=documents, identity=(name, source.has_splits and split, source.identity))


def _file_source(name: str, files: list[Path], separator: str | None, json_column: str | None = None) -> TextSource:
    contents = [content(file) for file in files]

    def documents() -> Iterator[Document]:
        for file in files:
            if json_column is None:
                for pieces in documents_of_file(file, separator):
                    if first := next(pieces, ""):  # an empty file is no document
                        yield chain([first], pieces)
            else:
                yield from documents_of_json_lines(file, json_column)

    named = tuple((str(file), of_file) for file, of_file in zip(files, contents))
    return TextSource(name, documents, (separator, json_column, *contents), files=named)


def content(file: Path) -> tuple[int, int]:
    """(bytes, checksum) at 1 GB/s: another text may have the name, the size and the time of the one before.

    Raises `TesseraError` where the file cannot be read.
    """
    try:
        return file.stat().st_size, checksum(file)
    except OSError as error:
        raise TesseraError(f"{file}: cannot be read ({error.strerror}).") from None


def contents_checksum(files: Iterable[Path]) -> str:
    """One checksum of what all `files` hold, in their order. Raises `TesseraError` where one cannot be read."""
    return hashlib.sha256(repr([content(file) for file in files]).encode()).hexdigest()


def _files(name: str, endings: tuple[str, ...]) -> list[Path]:
    path = Path(os.path.expanduser(name))
    if path.is_dir() and name.strip():  # an empty name is no folder
        files = _below(path, endings)
    elif glob.has_magic(name) and not path.exists():  # a file may be called "notes [1].txt"
        files = sorted(match for match in _matches(path) if not match.is_dir())
    else:
        files = [path]
    empty = [file for file in files if file.is_file() and file.stat().st_size == 0]
    if 0 < len(empty) < len(files):
        log.warning(f"data source {name!r}: left out, as empty: {', '.join(file.name for file in empty)}")
        files = [file for file in files if file not in empty]
    if not files or not all(file.is_file() for file in files):
        raise NoTextFileError(
            f"data source {name!r}: no such text file. Allowed: stories, a text file, a folder with *{endings[0]} "
            f"files, a glob, a list of those, or a Hugging Face dataset (owner/name or {HUB_PREFIX}name). "
            f"{plugins.ADVICE}"
        )
    return files


def _matches(pattern: Path) -> list[Path]:
    """What a glob names. Raises `OSError`, where `glob` would leave out a folder that it cannot look into."""
    for index, part in enumerate(pattern.parts):
        if glob.has_magic(part):
            folders = Path(*pattern.parts[:index], "**" if part == "**" else "")
            for folder in filter(os.path.isdir, glob.glob(str(folders), recursive=True)):
                os.scandir(folder).close()
    return [Path(match) for match in glob.glob(str(pattern), recursive=True)]


def _below(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    """The files in `folder`, then those below, with these endings and not hidden; a warning names the others."""
    files: list[Path] = []
    others: list[Path] = []
    for path in sorted(_visible(folder), key=lambda path: (len(path.parts), path.name.lower(), path)):
        if path.is_file():
            is_text = path.name.lower().removesuffix(".gz").endswith(endings)
            (files if is_text else others).append(path)
    if files and others:
        names = ", ".join(str(path.relative_to(folder)) for path in others[:3])
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        log.warning(f"data source {str(folder)!r}: only its {', '.join(endings)} files are read, not {names}{more}")
    return files


def _visible(folder: Path) -> Iterator[Path]:
    """What is no folder and not hidden, in it and below. Raises `OSError`, where `rglob` would leave a folder out."""

    def refuse(error: OSError) -> NoReturn:
        raise error

    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(place, name) for name in names if not name.startswith("."))


def _is_hub_name(spec: str) -> bool:
    """Whether it looks like a name on the hub, and neither stands for a file nor lies in a folder that is here."""
    path = Path(spec)
    return bool(_HUB_NAME.match(spec)) and not path.parent.exists() and path.suffix.lower() not in FILE_ENDINGS


def _dataset_source(name: str, subset: str | None, split: str, text_column: str) -> TextSource:
    """One split: every row of `text_column` is a document.

    `name` is a name on the hub, a folder of data files, or a folder written by `save_to_disk`, which may hold one
    dataset without splits. The rows stay in the dataset's memory-mapped files. Raises `TesseraError` for a missing
    package, dataset, subset, split or column.
    """
    rows, has_splits = _load(name, subset, split)
    if text_column not in rows.column_names:
        raise TesseraError(f"dataset {name}: no column {text_column!r}. {did_you_mean(text_column, rows.column_names)}")

    def documents() -> Iterator[Iterator[str]]:
        for number, row in enumerate(rows):
            if row[text_column]:
                expect_text(row[text_column], f"dataset {name}: {text_column} of row {number}")
                yield iter([row[text_column]])

    identity = (name, subset, split if has_splits else None, text_column, rows._fingerprint)
    return TextSource(f"{name} ({split})" if has_splits else name, documents, identity, has_splits=has_splits)


def _load(name: str, subset: str | None, split: str) -> tuple[Any, bool]:
    """The rows of a split, and whether there are splits."""
    if not name.strip("./ "):  # the package would read every file below this folder
        raise TesseraError(f"dataset {name!r}: must be a name on the hub or a folder of data files.")
    try:
        import datasets
    except ImportError:
        raise TesseraError(f"dataset {name}: needs the datasets package. Run: pip install 'tessera[hub]'.") from None
    try:
        if (Path(name) / "dataset_dict.json").exists() or (Path(name) / "state.json").exists():
            saved = datasets.load_from_disk(name)
            has_splits = isinstance(saved, datasets.DatasetDict)
            return saved[split] if has_splits else saved, has_splits
        return datasets.load_dataset(name, subset, split=split), True
    except Exception as error:  # an odd name makes the package raise anything, down to IndexError
        here = "" if Path(name).exists() else ", and no file or folder here has that name"
        raise TesseraError(f"dataset {name}: split {split!r} cannot be loaded ({first_line(error)}){here}.") from error
