"""Whose memory a file is, where it may be stored, and storing it while texts are being read."""

import hashlib
import json
import logging
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tessera.base.checkpoints import tensor_checksum
from tessera.base.errors import TesseraError, expect
from tessera.base.files import expect_output, expect_plain_file
from tessera.data.encoding import uncut
from tessera.inspection.trace import is_trace
from tessera.models.fingerprint import acting_weights
from tessera.models.saving.state_file import KIND, StateFile

if TYPE_CHECKING:
    from tessera.memory_files.memory import Memory

log = logging.getLogger(__name__)
READING_PER_STORING = 20  # seconds for each that the last storing took; the next one takes longer, as there is more
FIRST_STORING = 0.1  # seconds: a guess until there is one
# Settings of models that came later, with the values by which nothing changes: earlier memories do not know them.
LATER_SETTINGS: dict[str, Any] = {"inverse_bandwidth_scale": 1, "use_long_term_memory": True}
LATER_SETTINGS |= {"segment_end_ids": None, "segment_end_window": 16}


class StoredBesideError(TesseraError):
    """Another process has stored another file meanwhile: this memory is in `place`."""

    def __init__(self, path: Path, place: Path) -> None:
        got = f"one that another process stored meanwhile. This memory is in {str(place)!r}"
        super().__init__(f"{path}: the file must be the one that was there at first; got {got}.")
        self.place = place


class MemoryWriter:
    """Stores a memory in a file while texts are read into it, so that a reading that ends early loses few of them.

    A storing writes the whole file anew. It comes behind a document, after `READING_PER_STORING` times the seconds of
    the last one.
    """

    def __init__(self, memory: "Memory", path: Path, mark: tuple[int, ...] | None, is_stored: bool) -> None:
        """`mark`: `mark_of` what may be replaced. `is_stored`: the file holds what the memory holds now."""
        self.memory, self.path, self.mark = memory, path, mark
        self.stored = memory.names if is_stored else []
        self.seconds, self.since = FIRST_STORING, time.monotonic()
        self.beside: StoredBesideError | None = None

    def after_document(self) -> None:
        """Store what was read, where the reading since the last storing has taken long enough. Raises as `store`."""
        if time.monotonic() - self.since >= READING_PER_STORING * self.seconds:
            self.store()

    def finish(self) -> None:
        """Store what was read. Raises as `store`, and `StoredBesideError` where the file is now another process's."""
        self.store()
        if self.beside is not None:
            raise self.beside

    def store(self) -> None:
        """Store what was read, unless it is stored; beside the file where that is now another process's.

        Raises `TesseraError`: a memory that is not finite, or a file that cannot be written.
        """
        if self.memory.names == self.stored:
            return
        began = time.monotonic()
        try:
            self.memory.save(self.path, self.mark)
        except StoredBesideError as error:
            self.path, self.beside = error.place, error
        self.mark, self.stored = self.memory.marks[str(self.path)], self.memory.names
        self.since = time.monotonic()
        self.seconds = self.since - began

    @contextmanager
    def storing_when_stopped(self, words: Sequence[str]) -> Iterator[None]:
        """When a signal or an error ends the reading inside, what was read is stored, and a line says so.

        `words`: of the command that goes on, but for the file. Ctrl-C becomes a `KeyboardInterrupt` of this line. A
        `TesseraError` passes: it is of the only text, or of a storing.
        """
        names = self.memory.names
        try:
            yield
        except TesseraError:
            raise
        except BaseException as stop:
            if self.memory.names == names:
                raise
            self.store()
            command = shlex.join(["tessera", *words, "--out", str(self.path), "--append"])
            said = f"memorize: stopped; {self.path} holds {self.memory.described()}. Go on: {command}"
            if isinstance(stop, KeyboardInterrupt):
                raise KeyboardInterrupt(said) from None
            log.warning(said)
            raise


def made_by(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> dict[str, str]:
    """What a memory belongs to: digests of the settings and weights of its model, and of its tokenizer."""
    settings = _without_later(model.config.to_dict())
    for name in ("transformers_version", "dtype", "_name_or_path"):  # another release may write them otherwise
        settings.pop(name, None)
    text = json.dumps(settings, sort_keys=True, default=str)
    weights = str(tensor_checksum(acting_weights(model)))
    parts = {"settings": text, "weights": weights, "tokens": uncut(tokenizer).to_str()}
    return {name: digest(part) for name, part in parts.items()}


def _without_later(settings: dict[str, Any]) -> dict[str, Any]:
    """A configuration, and those inside it, without `LATER_SETTINGS` that change nothing."""
    return {
        name: _without_later(value) if isinstance(value, dict) else value
        for name, value in settings.items()
        if name not in LATER_SETTINGS or value != LATER_SETTINGS[name]
    }


def digest(text: str) -> str:
    """Sixteen characters that tell a text from others."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def mark_of(path: Path) -> tuple[int, ...] | None:
    """Tells the file `path` from any later one of its name; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def require_place(
    out: Path,
    overwrite: bool,
    verb: str = "memorize",
    argument: str = "--out",
    advice: str = "Use --append to go on behind what it holds, or --overwrite.",
) -> tuple[int, ...] | None:
    """The `mark_of` `out`. Raises `TesseraError` unless a memory can be stored there: before a long text is read.

    A file that exists is replaced if it is a stored memory and `overwrite` says so; no other file ever is.
    """
    mark = mark_of(out)
    expect_output(out, verb, argument, is_stored_memory, "a stored memory")
    is_free = overwrite or not out.exists()
    expect(is_free, verb, argument, "be a new file", f"{str(out)!r}, a stored memory", advice)
    return mark


def described_file(path: Path) -> list[str]:
    """Lines on a stored memory, of which its description alone is read: the first on the file, one on each document.

    Raises `TesseraError`: no such file, or one that is no memory of this version.
    """
    expect_plain_file(path, "memories", "M")
    file = StateFile.open(path, "memories", "M")
    documents, tensors = file.content.get("documents", []), file.tensors()
    counts = [tensors[document["tokens"]["of"]].numel() if "tokens" in document else 0 for document in documents]
    number = f"{len(documents)} document{'s' * (len(documents) != 1)}"
    size = path.stat().st_size / 1e6
    return [
        f"{path}: {file.kind}, {number}, {sum(counts):,} tokens, {size:.2f} MB",
        *(
            f"  {document['name']}: {document['size']:,} bytes, {count:,} tokens"
            for document, count in zip(documents, counts)
            if count
        ),
    ]


def is_stored_memory(path: Path) -> bool:
    """Whether `path` is a file of a memory, of this version or an earlier one."""
    try:
        with safe_open(path, framework="pt") as file:
            return KIND in (file.metadata() or {}) and not is_trace(path)
    except (SafetensorError, OSError):
        return False
