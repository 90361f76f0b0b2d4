"""Documents of UTF-8 text files, read in pieces whose borders no tokenizer can see."""

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tessera.base.errors import TesseraError, expect_text

PIECE_BYTES = 1 << 20
GZIP = b"\x1f\x8b"
# How files begin that hold text in another form, and what makes UTF-8 of them.
OTHER_KINDS = {
    b"%PDF": "a PDF; pdftotext makes text of it",
    b"PK\x03\x04": "a zip archive, such as docx, odt or epub; pandoc makes text of these",
    b"\xff\xfe\0\0": "UTF-32; run iconv -f UTF-32 -t UTF-8",
    b"\xff\xfe": "UTF-16; run iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16; run iconv -f UTF-16 -t UTF-8",
    b"BZh": "packed by bzip2; bunzip2 unpacks it",
    b"\xfd7zXZ": "packed by xz; unxz unpacks it",
    b"\x28\xb5\x2f\xfd": "packed by zstd; unzstd unpacks it",
}


def documents_of_file(
    path: Path, separator: str | None = None, piece_bytes: int = PIECE_BYTES
) -> Iterator[Iterator[str]]:
    """Documents of one file, each an iterator of pieces: the whole file, or the parts between `separator`s.

    Line breaks around a separator belong to it, and parts without text are no documents. A file without separator is
    read in pieces of about `piece_bytes`; a document between separators is one piece.
    Raises `TesseraError` when the file cannot be read or is not UTF-8, naming the byte.
    """
    if separator is None:
        yield safe_pieces(text_of_file(path, piece_bytes))
        return
    for text in _parts(text_of_file(path, piece_bytes), separator.replace("\r\n", "\n")):
        if text.strip():
            yield iter([text.strip("\n")])


def documents_of_json_lines(path: Path, column: str, piece_bytes: int = PIECE_BYTES) -> Iterator[Iterator[str]]:
    """Documents of a file with one JSON value a line: a text, or an object whose `column` is the text.

    Empty texts are no documents, as in data sets and between separators.
    Raises `TesseraError` naming the line that is neither.
    """
    for number, line in enumerate(_parts(text_of_file(path, piece_bytes), "\n"), 1):
        if line.strip() and (text := _text_of_json(line, column, f"{path}: line {number}")):
            yield iter([text])


def text_of_file(path: Path, piece_bytes: int = PIECE_BYTES) -> Iterator[str]:
    r"""The text of a UTF-8 file, plain or packed by gzip, in pieces of about `piece_bytes`.

    A byte order mark is left out, and every line ends in `\n`, whichever system wrote the file.
    Raises `TesseraError` when it cannot be read, is not UTF-8, or holds NUL, naming the byte.
    """
    for text, _ in located_text_of_file(path, piece_bytes):
        yield text


def located_text_of_file(path: Path, piece_bytes: int = PIECE_BYTES) -> Iterator[tuple[str, np.ndarray]]:
    """`text_of_file`, with the bytes of the (unpacked) file that each character stands for.

    A line break of two characters has 2; a byte order mark counts with the first character.
    """
    try:
        if path.exists() and not path.is_file():
            raise TesseraError(f"{path}: must be a plain file of text.")
        with open(path, "rb") as plain:
            is_packed = plain.read(len(GZIP)) == GZIP
            plain.seek(0)
            with gzip.open(plain) if is_packed else plain as file:
                yield from _decoded(path, file, piece_bytes)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TesseraError(f"{path}: this gzip file is damaged ({error}).") from None
    except OSError as error:
        raise TesseraError(f"{path}: cannot be read ({error.strerror}).") from None


def text_of_files(
    paths: Iterable[Path], piece_bytes: int = PIECE_BYTES, read: Callable[[Path, int], Iterator[str]] = text_of_file
) -> Iterator[str]:
    """The texts of several files, by `read`, one behind the other, an empty line between two that hold something."""
    is_first = True
    for path in paths:
        texts = read(path, piece_bytes)
        for text in texts:
            yield text if is_first else f"\n\n{text}"
            yield from texts
            is_first = False


def utf8_sizes(text: str) -> np.ndarray:
    """Bytes of each character."""
    if text.isascii():
        return np.ones(len(text), dtype=np.uint8)
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    return np.searchsorted([0, 0x80, 0x800, 0x10000], codes, side="right").astype(np.uint8)


def _decoded(path: Path, file: BinaryIO | gzip.GzipFile, piece_bytes: int) -> Iterator[tuple[str, np.ndarray]]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset, is_first, mark, held = 0, True, 0, ""  # held: a carriage return whose line feed may follow
    while True:
        data = file.read(piece_bytes)
        if not offset:
            for beginning, kind in OTHER_KINDS.items():
                if data.startswith(beginning):
                    raise TesseraError(f"{path}: text must be UTF-8; this is {kind}.")
        if b"\0" in data:  # before bytes that are no UTF-8, of which UTF-16 without a mark has some too
            byte = offset + data.index(b"\0")
            form = f"UTF-16{'LE' if byte % 2 else 'BE'}"
            raise TesseraError(
                f"{path}: text must be UTF-8 without NUL; byte {byte} is NUL, as in {form}. If it is text, convert it "
                f"by iconv -f {form} -t UTF-8."
            )
        pending = len(decoder.getstate()[0])
        try:
            text = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            byte = offset - pending + error.start
            advice = "Convert it, such as by iconv -f LATIN1 -t UTF-8."
            raise TesseraError(f"{path}: text must be UTF-8; byte {byte} is not. {advice}") from None
        offset += len(data)
        if is_first and text:
            mark, is_first = 3 * text.startswith("\ufeff"), False
            text = text.removeprefix("\ufeff")
        text, held = held + text, ""
        if text.endswith("\r") and data:
            text, held = text[:-1], "\r"
        sizes = utf8_sizes(text)
        if "\r" in text:
            breaks = np.array([match.start() for match in re.finditer("\r\n", text)], dtype=np.intp)
            sizes[breaks] += 1
            sizes = np.delete(sizes, breaks + 1)
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        if text:
            sizes[0] += mark
            mark = 0
            yield text, sizes
        if not data:
            return


def safe_pieces(texts: Iterable[str]) -> Iterator[str]:
    """The same text cut where tokenizers cut anyway, so that the pieces encode as the whole does.

    GPT-2's splitting rule, and those that came after it, look ahead over white space. Two borders are safe whichever
    text follows: before a space behind a visible character (the blanks stand alone or belong to the next word), and
    before a line break behind a letter or digit (T5's make it such a blank; Llama 3's joins it to a full stop before
    it). A text without these is cut before a tab in place of the space; one without these after a line break; one
    without such lines before the last blank in front of a word: the blanks before it are one token in either case. Not
    in front of a digit: SmolLM2's keeps all of these blanks in one token.
    """
    held: list[str] = []  # without a border
    edge = ""  # the last two characters: what follows decides whether there is a border
    for text in texts:
        new = edge + text
        cut = max(_last_border(new, " "), _last_border(new, "\n", after=str.isalnum)) or _last_border(new, "\t")
        if not cut and (line := _last_border(new, "\n", before=_is_visible)):
            cut = line + 1
        cut = cut or max(_last_border(new, mark, after=lambda _: True, before=_begins_word) for mark in " \t")
        if cut > 0:
            yield "".join([*held, new[:cut]])
            held, new = [], new[cut:]
        held.append(new[:-2])
        edge = new[-2:]
    if rest := "".join([*held, edge]):
        yield rest


def _is_visible(character: str) -> bool:
    return not character.isspace()


def _begins_word(character: str) -> bool:
    return not (character.isspace() or character.isnumeric())


def _last_border(
    text: str,
    mark: str,
    after: Callable[[str], bool] = _is_visible,
    before: Callable[[str], bool] = lambda _: True,
) -> int:
    """Index of the last `mark` that stands after and before such characters; 0: none."""
    at = text.rfind(mark, 1, len(text) - 1)
    while at > 0 and not (after(text[at - 1]) and before(text[at + 1])):
        at = text.rfind(mark, 1, at)
    return max(at, 0)


def _parts(texts: Iterable[str], separator: str) -> Iterator[str]:
    """The parts of a text between separators; every character is looked at once, however long a part is."""
    held: list[str] = []  # of the part that goes on
    edge = ""  # a separator may have begun here
    for text in texts:
        first, *others = (edge + text).split(separator)
        if others:
            yield "".join([*held, first])
            yield from others[:-1]
            held, first = [], others[-1]
        border = max(0, len(first) - len(separator) + 1)
        held.append(first[:border])
        edge = first[border:]
    yield "".join([*held, edge])


def _text_of_json(line: str, column: str, where: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise TesseraError(f"{where} must be JSON; got {line[:40]!r}. Is data.format right?") from None
    text = value.get(column) if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise TesseraError(f"{where} must be a text, or an object with text in {column!r}; got {line[:40]!r}.")
    expect_text(text, where)
    return text
