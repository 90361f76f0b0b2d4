"""Token stores: text tokenised once into a memory-mapped file.

A store is a folder: `tokens.bin` (little-endian uint16 or uint32), `documents.bin` (int64, where each document
begins) and `store.json` (counts and the fingerprint). It is written under another name and renamed when it is
complete, so that a folder with the right name is a whole store.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tessera.data.sources import TextSource
from tessera.errors import TesseraError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

FORMAT = 1
TOKENS, DOCUMENTS, DESCRIPTION = "tokens.bin", "documents.bin", "store.json"


@dataclass(frozen=True)
class StoreDescription:
    """What `store.json` says: counts of tokens, documents and bytes of text, and what the store was made from."""

    fingerprint: str
    dtype: str
    num_tokens: int
    num_documents: int
    num_bytes: int
    largest_token: int


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

    def document_ids(self, start: int, stop: int) -> np.ndarray:
        """The number of the document that each token of `tokens[start:stop]` belongs to."""
        return np.searchsorted(self.document_starts, np.arange(start, stop), side="right") - 1


def fingerprint(source: TextSource, tokenizer: "PreTrainedTokenizerFast", begin_token: bool, end_token: bool) -> str:
    """A name that changes whenever the tokens would: text, tokenizer, tokens around documents, file format."""
    parts = [FORMAT, source.identity, tokenizer.backend_tokenizer.to_str(), begin_token, end_token]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def open_or_build(
    source: TextSource,
    tokenizer: "PreTrainedTokenizerFast",
    cache: Path,
    *,
    begin_token: bool = False,
    end_token: bool = True,
) -> TokenStore:
    """The store of `source` in folder `cache`, tokenised now unless a complete one of the same fingerprint is there.

    Time and memory: one pass over the text, one piece in memory. Raises `TesseraError` for text without tokens, a
    missing begin- or end-of-text token, or a folder that cannot be written.
    """
    name = fingerprint(source, tokenizer, begin_token, end_token)
    folder = cache / f"tokens-{name}"
    store = _open(folder, name)
    if store is None:
        marks = _marks(tokenizer, begin_token, end_token)
        try:
            _build(source, tokenizer, folder, name, marks)
        except OSError as error:
            raise TesseraError(f"token store {folder}: cannot be written ({error.strerror}).") from None
        store = _open(folder, name)
        assert store is not None, "a store that was just written is complete"
    return store


def _open(folder: Path, name: str) -> TokenStore | None:
    """The store in `folder`, or None when it is missing, damaged or made from something else."""
    try:
        description = StoreDescription(**json.loads((folder / DESCRIPTION).read_text()))
        sizes = (folder / TOKENS).stat().st_size, (folder / DOCUMENTS).stat().st_size
    except (OSError, ValueError, TypeError):
        return None
    whole = sizes == (description.num_tokens * np.dtype(description.dtype).itemsize, description.num_documents * 8)
    return TokenStore(folder, description) if whole and description.fingerprint == name else None


def _marks(tokenizer: "PreTrainedTokenizerFast", begin: bool, end: bool) -> tuple[list[int], list[int]]:
    for wanted, name, token in (
        (begin, "begin_token", tokenizer.bos_token_id),
        (end, "end_token", tokenizer.eos_token_id),
    ):
        if wanted and token is None:
            raise TesseraError(f"data: {name} must be false for a tokenizer without such a token; got true.")
    return [tokenizer.bos_token_id] * begin, [tokenizer.eos_token_id] * end


def _build(
    source: TextSource,
    tokenizer: "PreTrainedTokenizerFast",
    folder: Path,
    name: str,
    marks: tuple[list[int], list[int]],
) -> None:
    dtype = "<u2" if len(tokenizer) <= 1 << 16 else "<u4"
    draft = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        starts, num_tokens, num_bytes, largest = [], 0, 0, -1
        with open(draft / TOKENS, "wb") as file:
            for ids, first, size in _encoded(source, tokenizer, marks):
                if first:
                    starts.append(num_tokens)
                file.write(np.asarray(ids, dtype=dtype).tobytes())
                num_tokens += len(ids)
                num_bytes += size
                largest = max(largest, max(ids, default=-1))
            file.flush()
            os.fsync(file.fileno())
        if not num_bytes:
            raise TesseraError(f"data source {source.name}: must contain text; got an empty corpus.")
        np.asarray(starts, dtype="<i8").tofile(draft / DOCUMENTS)
        description = StoreDescription(name, dtype, num_tokens, len(starts), num_bytes, largest)
        (draft / DESCRIPTION).write_text(json.dumps(asdict(description), indent=1) + "\n")
        _publish(draft, folder, name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _publish(draft: Path, folder: Path, name: str) -> None:
    """Give the finished draft its name, unless another process has put a whole store there meanwhile."""
    if _open(folder, name) is None:
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(draft, folder)


def _encoded(
    source: TextSource, tokenizer: "PreTrainedTokenizerFast", marks: tuple[list[int], list[int]]
) -> Iterator[tuple[list[int], bool, int]]:
    """(token ids, does a document begin here, bytes of text), piece after piece."""
    encode = tokenizer.backend_tokenizer.encode
    before, after = marks
    for document in source.documents():
        first = True
        for piece in document:
            ids = encode(piece, add_special_tokens=False).ids
            yield (before + ids if first else ids), first, len(piece.encode())
            first = False
        if not first:
            yield after, False, 0
