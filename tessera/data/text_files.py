"""Documents of UTF-8 text files, read in pieces whose borders no byte-level tokenizer can see."""

import codecs
import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from tessera.base.errors import TesseraError

PIECE_BYTES = 1 << 20


def documents_of_file(
    path: Path, separator: str | None = None, piece_bytes: int = PIECE_BYTES
) -> Iterator[Iterator[str]]:
    """Documents of one file, each an iterator of pieces: the whole file, or the parts between `separator`s.

    Line breaks around a separator belong to it, and parts without text are no documents. A file without separator is
    read in pieces of about `piece_bytes`; a document between separators is one piece.
    Raises `TesseraError` when the file cannot be read or is not UTF-8, naming the byte.
    """
    if separator is None:
        yield _pieces(_decoded(path, piece_bytes))
        return
    rest = ""
    for text in _decoded(path, piece_bytes):
        *documents, rest = (rest + text).split(separator)
        for part in documents:
            if part.strip():
                yield iter([part.strip("\r\n")])
    if rest.strip():
        yield iter([rest.strip("\r\n")])


def documents_of_json_lines(path: Path, column: str, piece_bytes: int = PIECE_BYTES) -> Iterator[Iterator[str]]:
    """Documents of a file with one JSON value a line: a text, or an object whose `column` is the text.

    Raises `TesseraError` naming the line that is neither.
    """
    number, rest = 0, ""
    for text in chain(_decoded(path, piece_bytes), ["\n"]):
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            number += 1
            if line.strip():
                yield iter([_text_of_json(line, column, f"{path}: line {number}")])


def _text_of_json(line: str, column: str, where: str) -> str:
    try:
        value = json.loads(line)
    except ValueError:
        raise TesseraError(f"{where} must be JSON; got {line[:40]!r}. Is data.format right?") from None
    text = value.get(column) if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise TesseraError(f"{where} must be a text, or an object with text in {column!r}; got {line[:40]!r}.")
    return text


def _decoded(path: Path, piece_bytes: int) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0
    try:
        with open(path, "rb") as file:
            while True:
                data = file.read(piece_bytes)
                pending = len(decoder.getstate()[0])
                try:
                    text = decoder.decode(data, final=not data)
                except UnicodeDecodeError as error:
                    place = offset - pending + error.start
                    raise TesseraError(f"{path}: text must be UTF-8; byte {place} is not. Convert the file.") from None
                offset += len(data)
                if text:
                    yield text
                if not data:
                    return
    except OSError as error:
        raise TesseraError(f"{path}: cannot be read ({error.strerror}).") from None


def _pieces(texts: Iterator[str]) -> Iterator[str]:
    """The same text cut where every byte-level tokenizer cuts anyway, so that the pieces encode as the whole does.

    GPT-2's splitting rule looks ahead over white space. Two borders are safe whichever text follows: before a single
    space between visible characters (the space belongs to the next word), and after such a line break.
    """
    rest = ""
    for text in texts:
        rest += text
        cut = max(_last_between_visible(rest, " "), _last_between_visible(rest, "\n"))
        if cut > 0:
            yield rest[:cut]
            rest = rest[cut:]
    if rest:
        yield rest


def _last_between_visible(text: str, mark: str) -> int:
    """Index of the last `mark` (after it, for a line break) that has visible characters on both sides; 0: none."""
    at = text.rfind(mark, 1, len(text) - 1)
    while at > 0 and (text[at - 1].isspace() or text[at + 1].isspace()):
        at = text.rfind(mark, 1, at)
    return max(at, 0) + (mark == "\n" and at > 0)
