"""Token stores: text tokenised once into a memory-mapped file.

A store is a folder: `tokens.bin` (little-endian uint16 or uint32), `documents.bin` (int64, where each document
begins) and `store.json` (counts, checksums and the fingerprint). It is written under another name and renamed when it
is complete. Opening one reads all of it, and its text, for their checksums (CRC-32, about 1 GB/s).
"""

import hashlib
import json
import logging
import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tessera.base.beginnings import opening_tokens
from tessera.base.checkpoints import checksum
from tessera.base.errors import TesseraError, first_line
from tessera.base.files import remove, sync, writing
from tessera.base.locks import folder_shared
from tessera.data.encoding import encoded_pieces, num_ids, uncut
from tessera.data.sources import TextSource

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

log = logging.getLogger(__name__)
FORMAT = 2  # 1 kept byte order marks and the line ends of Windows
TOKENS, DOCUMENTS, DESCRIPTION = "tokens.bin", "documents.bin", "store.json"
COUNTED_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class StoreDescription:
    """What `store.json` says: counts of tokens, documents and bytes of text, and what the store was made from.

    `checksums` are those of `tokens.bin` and `documents.bin`.
    """

    fingerprint: str
    dtype: str
    num_tokens: int
    num_documents: int
    num_bytes: int
    largest_token: int
    checksums: list[int]


@dataclass(frozen=True)
class TokenStore:
    """An open store. `tokens` is a read-only memory map; slices of it are read when they are used."""

    folder: Path
    description: StoreDescription

    @cached_property
    def tokens(self) -> np.ndarray:
        """All token ids, one after another."""
        return np.memmap(self.folder / TOKENS, dtype=self.description.dtype, mode="r")

    @cached_property
    def document_starts(self) -> np.ndarray:
        """Index of the first token of each document, ascending."""
        return np.memmap(self.folder / DOCUMENTS, dtype="<i8", mode="r")

    @cached_property
    def token_counts(self) -> np.ndarray:
        """How often each token id up to the largest occurs; one pass over the tokens."""
        counts = np.zeros(self.description.largest_token + 1, np.int64)
        for start in range(0, len(self.tokens), COUNTED_AT_ONCE):
            counts += np.bincount(self.tokens[start : start + COUNTED_AT_ONCE], minlength=len(counts))
        return counts

    def document_ids(self, start: int, stop: int) -> np.ndarray:
        """The number of the document that each token of `tokens[start:stop]` belongs to."""
        return np.searchsorted(self.document_starts, np.arange(start, stop), side="right") - 1


def fingerprint(
    source: TextSource, tokenizer: "PreTrainedTokenizerFast", special_tokens: tuple[list[int], list[int]]
) -> str:
    """A name that changes whenever the tokens would: text, tokenizer, tokens around documents, file format."""
    parts = [FORMAT, source.identity, uncut(tokenizer).to_str(), special_tokens]  # tokenizer.json names no end token
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def open_or_build(
    source: TextSource,
    tokenizer: "PreTrainedTokenizerFast",
    cache: Path,
    *,
    begin_token: bool | None = False,
    end_token: bool = True,
    known: Path | None = None,
) -> TokenStore:
    """The store of `source` in folder `cache`, tokenised now unless a complete one of the same fingerprint is there.

    Nor where one is in folder `known`, which is not written into. `begin_token` None: as the tokenizer begins texts.

    Time and memory: one pass over the text, one piece in memory. Raises `TesseraError` for text without tokens, a
    missing begin- or end-of-text token, or a folder that cannot be written.
    """
    special_tokens = _special_tokens(tokenizer, begin_token, end_token)
    name = fingerprint(source, tokenizer, special_tokens)
    folder, reason = cache / f"tokens-{name}", ""
    for place in (cache,) if known is None else (known, cache):
        store, reason = _open(place / folder.name, name)
        if store is not None:
            return store
    if reason:
        log.warning(f"token store {folder}: {reason}; it is made again from the text")
    with writing(f"token store {folder}"), working_in(cache):
        return _build(source, tokenizer, folder, name, special_tokens)


@contextmanager
def working_in(cache: Path) -> Iterator[None]:
    """Write into folder `cache`, which is made, beside other processes; what dead ones left half done is deleted.

    A cache that did not exist and into which nothing was written is deleted as well.
    """
    made = not cache.exists()
    cache.mkdir(parents=True, exist_ok=True)
    try:
        with folder_shared(cache, lambda: _tidy(cache)):
            yield
    finally:
        if made:
            with suppress(OSError):  # it is not empty
                cache.rmdir()


def _tidy(cache: Path) -> None:
    for path in [*cache.glob("tokens-*.tmp"), *cache.glob("tokenizer-*.tmp")]:
        remove(path)


def _open(folder: Path, name: str) -> tuple[TokenStore | None, str]:
    """(the store in `folder` if it is complete, what is wrong with it: nothing when there is none)."""
    try:
        content = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
        description = StoreDescription(**content)
        files = (folder / TOKENS, folder / DOCUMENTS)
        sizes = tuple(file.stat().st_size for file in files)
        expected = (description.num_tokens * np.dtype(description.dtype).itemsize, description.num_documents * 8)
        if description.fingerprint != name or sizes != expected:
            return None, f"{sizes[0]} and {sizes[1]} bytes do not fit its description"
        if description.checksums != [checksum(file) for file in files]:
            return None, "its tokens were changed"
    except FileNotFoundError as error:
        return None, f"{Path(error.filename).name} is missing" if folder.exists() else ""
    except (OSError, ValueError, TypeError, RecursionError) as error:
        return None, f"it cannot be read ({first_line(error)})"
    return TokenStore(folder, description), ""


def _special_tokens(tokenizer: "PreTrainedTokenizerFast", begin: bool | None, end: bool) -> tuple[list[int], list[int]]:
    for is_used, name, token in (
        (begin, "begin_token", tokenizer.bos_token_id),
        (end, "end_token", tokenizer.eos_token_id),
    ):
        if is_used and token is None:
            raise TesseraError(f"data: {name} must be false for a tokenizer without such a token; got true.")
    before = opening_tokens(tokenizer) if begin is None else [tokenizer.bos_token_id] * begin
    return before, [tokenizer.eos_token_id] * end


def _build(
    source: TextSource,
    tokenizer: "PreTrainedTokenizerFast",
    folder: Path,
    name: str,
    special_tokens: tuple[list[int], list[int]],
) -> TokenStore:
    dtype = "<u2" if num_ids(tokenizer) <= 1 << 16 else "<u4"
    temporary = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    remove(temporary)
    temporary.mkdir()
    try:
        starts, num_tokens, num_bytes, largest, value = [], 0, 0, -1, 0
        with open(temporary / TOKENS, "wb") as file:
            for ids, first, size in _encoded(source, tokenizer, special_tokens):
                if first:
                    starts.append(num_tokens)
                data = np.asarray(ids, dtype=dtype).tobytes()
                file.write(data)
                value = zlib.crc32(data, value)
                num_tokens += len(ids)
                num_bytes += size
                largest = max(largest, max(ids, default=-1))
        if not num_bytes:
            raise TesseraError(f"data source {source.name}: must contain text; got an empty corpus.")
        borders = np.asarray(starts, dtype="<i8").tobytes()
        (temporary / DOCUMENTS).write_bytes(borders)
        sums = [value, zlib.crc32(borders)]
        description = StoreDescription(name, dtype, num_tokens, len(starts), num_bytes, largest, sums)
        (temporary / DESCRIPTION).write_text(json.dumps(asdict(description), indent=1) + "\n")
        for part in (TOKENS, DOCUMENTS, DESCRIPTION):
            sync(temporary / part)
        if _open(folder, name)[0] is None:  # no other process has put a complete one there meanwhile
            remove(folder)
            os.replace(temporary, folder)
        return TokenStore(folder, description)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _encoded(
    source: TextSource, tokenizer: "PreTrainedTokenizerFast", special_tokens: tuple[list[int], list[int]]
) -> Iterator[tuple[list[int], bool, int]]:
    """(token ids, does a document begin here, bytes of text), piece after piece."""
    before, after = special_tokens
    for document in source.documents():
        is_first = True
        for piece, ids in encoded_pieces(document, tokenizer):
            yield (before + ids if is_first else ids), is_first, len(piece.encode())
            is_first = False
        if not is_first:
            yield after, False, 0
