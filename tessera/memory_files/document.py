"""One document of a memory: its tokens, where each stands in the source, and what reading it left; several as one."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.util import find_spec
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from tessera.base.beginnings import opening_tokens
from tessera.base.errors import TesseraError, expect, expect_text, first_line
from tessera.data.encoding import PIECE, located_tokens
from tessera.data.sources import BUNDLED, TEXT_ENDINGS, NoTextFileError, text_files
from tessera.data.text_files import located_text_of_file, text_of_file, utf8_sizes
from tessera.memories.pair_memory import PairMemoryState
from tessera.memories.persistent import PersistentState
from tessera.models.fingerprint import shared
from tessera.models.stack_state import StackState
from tessera.recall.pair_store import PairStore

# How the names of files end that markitdown, an optional package, makes text of, and its class that does. No other may
# try: what cannot be read as what it is called would be taken for plain text.
CONVERTED = {".pdf": "Pdf", ".docx": "Docx", ".pptx": "Pptx", ".xlsx": "Xlsx", ".epub": "Epub"}
CONVERTED |= {".html": "Html", ".htm": "Html"}
ROOM = 1024  # tokens of a question with its answer
NEEDED = 'needs the package markitdown, which is not installed: pip install "tessera[documents]"'

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Document:
    """A text that was read.

    Attributes:
        size: bytes of the source, unpacked. tokens, widths: (T,) integers; token i and the bytes from where it begins
            to where the next does, so that together they are `size`. What the tokenizer begins texts with has none.
        origin: a digest of the absolute path that it was read from; "" of a text, and in files of earlier versions.
        precision: the number format of the products by which it was read, bf16 or fp32; None: as the surroundings said.
        state: what reading it left: alone in a memory of pairs, else behind the documents before it; None: not kept.
    """

    name: str
    size: int
    tokens: Tensor
    widths: Tensor
    state: Any = None
    origin: str = ""
    precision: str | None = None

    def has_text_of(self, other: "Document") -> bool:
        """Whether it was read from the same text, begun as now or as in earlier versions; of no tokens nobody knows."""
        shorter, longer = sorted((self, other), key=lambda document: len(document.tokens))
        opening = len(longer.tokens) - len(shorter.tokens)
        is_text = len(shorter.tokens) > 0 and self.size == other.size and not longer.widths[:opening].any()
        same_tokens = is_text and torch.equal(longer.tokens[opening:], shorter.tokens)
        return same_tokens and torch.equal(longer.widths[opening:], shorter.widths)

    def opening(self, tokenizer: PreTrainedTokenizerFast) -> int:
        """How many tokens stand in front of its text: none in files of earlier versions."""
        begun = opening_tokens(tokenizer)
        is_begun = self.tokens[: len(begun)].tolist() == begun and not self.widths[: len(begun)].any()
        return len(begun) if is_begun else 0

    def starts(self) -> Tensor:
        """Byte offsets (T + 1,) of the tokens in the source, and its end."""
        return torch.cat([torch.zeros(1, dtype=torch.long), self.widths.long().cumsum(0)])


def read_document_text(
    source: "Path | str | Iterable[str]", tokenizer: PreTrainedTokenizerFast, name: str, where: str
) -> Document:
    """The tokens of a file (a `Path`) or of a text, which may come in pieces; without state.

    Raises `TesseraError`: no text, a file that cannot be read, or one that needs a package that is not installed.
    """
    expect(isinstance(name, str), "Memory.read", "name", "be a text", type(name).__name__)
    shown = str(source) if isinstance(source, Path) else name
    if isinstance(source, Path) and _converter(source):
        source = text_of_document(source)
    if isinstance(source, Path):
        pieces: Iterator = located_text_of_file(source, PIECE)
    else:
        pieces = _sized([source] if isinstance(source, str) else source, where)
    parts = list(located_tokens(pieces, tokenizer))
    if not any(len(ids) for ids, _, _ in parts):
        raise TesseraError(f"{where} must hold text; got {shown!r}, which is empty.")
    opening, size = np.array(opening_tokens(tokenizer), np.int32), parts[-1][2]
    tokens = np.concatenate([opening, *(ids for ids, _, _ in parts)])
    starts = np.concatenate([np.zeros(len(opening), np.int64), *(begins for _, begins, _ in parts), [size]])
    starts = np.maximum.accumulate(starts)
    starts[len(opening)] = 0  # a byte order mark belongs to the first
    widths = np.diff(starts)
    small = widths.max() < 256
    return Document(name, size, torch.from_numpy(tokens), torch.from_numpy(widths.astype("u1" if small else "i4")))


def _sized(texts: Iterable[str], where: str) -> Iterator[tuple[str, np.ndarray]]:
    for text in texts:
        expect_text(text, where)
        yield text, utf8_sizes(text)


def _converter(path: Path) -> str | None:
    """The class that makes text of it, packed or not; None: it is text."""
    return CONVERTED.get(Path(path.name.lower().removesuffix(".gz")).suffix)


def text_of_document(path: Path, piece_bytes: int = PIECE) -> Iterator[str]:
    """The text of a file in pieces; of one that is no text file (`CONVERTED`) as markitdown makes it.

    Raises `TesseraError`: see `read_document_text`.
    """
    converter_name = _converter(path)
    if converter_name is None:
        yield from text_of_file(path, piece_bytes)
        return
    if path.suffix.lower() == ".gz":
        raise TesseraError(f"{path}: must be unpacked first (gunzip).")
    try:
        import markitdown
    except ImportError:
        raise TesseraError(f"{path}: {NEEDED}.") from None
    try:
        converter = markitdown.MarkItDown(enable_builtins=False, enable_plugins=False)
        converter.register_converter(getattr(markitdown.converters, f"{converter_name}Converter")())
        yield converter.convert_local(str(path)).text_content
    except Exception as error:  # its readers raise anything
        attempts = getattr(error, "attempts", None)  # a list, in what markitdown makes of it
        reason = first_line(attempts[-1].exc_info[1] if attempts else error)
        raise TesseraError(f"{path}: cannot be read as {path.suffix[1:].lower()} ({reason}).") from None


def free_name(name: str, taken: Sequence[str]) -> str:
    """`name`, or with the first number from 2 on with which it is none of `taken`."""
    return next(free for free in chain([name], (f"{name} {n}" for n in count(2))) if free not in taken)


def document_paths(name: str, where: str, argument: str) -> list[Path]:
    """The files that `name` names: a file, a folder or a glob of text files, or one of the bundled books.

    Of a folder also Markdown, and what markitdown makes text of where it is installed.
    """
    expect(name != "", where, argument, "name a text", repr(name))
    bundled = {path.name: path for texts in BUNDLED for path in text_files(texts)}
    if name in bundled and not Path(name).exists():
        return [bundled[name]]
    converted = tuple(CONVERTED) if find_spec("markitdown") else ()
    try:
        files = text_files(name, (*TEXT_ENDINGS, ".md", *converted))
    except NoTextFileError:
        files = []
    below = sorted(Path(name).rglob("*")) if Path(name).is_dir() and not converted else []
    unread = [path.name for path in below if path.suffix.lower() in CONVERTED]
    if not files:
        books = ", ".join(get_close_matches(name, bundled, 3, cutoff=0))
        reason = "does not exist"
        if Path(name).exists():
            reason = "holds no text file" if Path(name).is_dir() else "is no plain file; pipe it in with memorize -"
            reason += f"; {unread[0]} {NEEDED}" if unread else ""
        raise TesseraError(
            f"{where}: {argument} must be a text file, a folder of such, or a bundled book ({books}, ...); got "
            f"{name!r}, which {reason}."
        )
    if unread:
        log.warning(f"{where}: {unread[0]} {NEEDED}")
    return files


def is_of_pairs(state: Any) -> bool:
    """Whether each layer keeps pairs, and nothing else that grows or forgets."""
    layers = [layer if isinstance(layer, tuple) else (layer,) for layer in getattr(state, "layers", ())]
    known = PairMemoryState | PersistentState | None  # of another memory the last document alone would stay
    return isinstance(state, StackState) and all(
        any(isinstance(memory, PairMemoryState) for memory in layer) and all(isinstance(m, known) for m in layer)
        for layer in layers
    )


def together(states: Sequence[StackState]) -> StackState:
    """One state whose pairs are those of all `states`, as of one document.

    What a stack of pair memories (v1, v2) keeps of a document does not depend on the documents before it, so that one
    that is left out was never read. A question sees the pairs of all, and goes on from the end of the last.
    Equal to the state of a model that read them one behind the other with `document_ids`, whose pairs then all count as
    document 0: the pair of the last token of a document, whose value never came, is stored as absent.
    It has room for a question, so that to ask one copies no pairs. Raises `TesseraError`: states of different models.
    """
    last = states[-1]
    if len(states) == 1:
        return replace(last, layers=tuple(map(_with_room, last.layers)))
    zero = _zero(last)
    layers = tuple(_together(parts, zero) for parts in zip(*(state.layers for state in states), strict=True))
    model = shared("Memory", [state.model for state in states])
    return replace(last, layers=layers, length=sum(state.length for state in states), document=zero, model=model)


def without(state: StackState, first: int, end: int) -> StackState:
    """`state` without the pairs of its steps `first` to `end - 1`; keys and values are those of `state`, not copied."""
    newest = state.length - 2  # the last step's pair waits for its value

    def cut(memory: Any) -> Any:
        """A memory, or the memories of a layer, in which the pairs of these steps count as padding."""
        if isinstance(memory, tuple):
            return tuple(cut(inner) for inner in memory)
        if isinstance(memory, PairMemoryState):
            pairs = memory.pairs
            offset = newest + 1 - pairs.length  # the step of the oldest pair
            documents = pairs.known_documents().clone()
            documents[:, max(0, first - offset) : max(0, end - offset)] = -1
            memory = replace(memory, pairs=pairs.of_documents(documents))
        return _in_document(memory, _zero(state))

    return replace(state, layers=cut(state.layers), document=_zero(state))


def _together(parts: Sequence[Any], zero: Tensor) -> Any:
    last = parts[-1]
    if isinstance(last, tuple):
        return tuple(_together(inner, zero) for inner in zip(*parts, strict=True))
    if not isinstance(last, PairMemoryState):
        return _in_document(last, zero)
    stores = [part.pairs for part in parts]
    absent = torch.zeros_like(last.pending_key), torch.zeros_like(last.pending_value)
    keys = [tensor for store in stores for tensor in (store.keys, absent[0])][:-1]
    values = [tensor for store in stores for tensor in (store.values, absent[1])][:-1]
    documents = [tensor for store in stores for tensor in (store.known_documents(), zero - 1)][:-1]
    pairs = PairStore.of(torch.cat(keys, 2), torch.cat(values, 2), torch.cat(documents, 1)).roomy(ROOM)
    position = None if last.position is None else sum(part.position for part in parts) - (len(parts) - 1)
    # Of documents that were read in several number formats the pairs have the widest.
    pending = {"pending_key": last.pending_key.to(pairs.keys), "pending_value": last.pending_value.to(pairs.values)}
    return replace(_in_document(last, zero), pairs=pairs, position=position, **pending)


def _with_room(memory: Any) -> Any:
    """A memory, or the memories of a layer, with room for a question and its answer."""
    if isinstance(memory, tuple):
        return tuple(map(_with_room, memory))
    return replace(memory, pairs=memory.pairs.roomy(ROOM)) if isinstance(memory, PairMemoryState) else memory


def _in_document(memory: Any, document: Tensor) -> Any:
    return replace(memory, document=document) if hasattr(memory, "document") else memory


def _zero(state: StackState) -> Tensor:
    """The number (1, 1) of the document that all steps count as."""
    memory: Any = state.layers[0]
    memory = memory[0] if isinstance(memory, tuple) else memory
    return torch.zeros(1, 1, dtype=torch.long, device=memory.pending_key.device)
