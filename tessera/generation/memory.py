"""Texts read into the memory of a model that reads in segments, and questions asked of a stored memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from safetensors import SafetensorError, safe_open

from tessera.base.errors import TesseraError
from tessera.base.files import expect_writable
from tessera.models.recurrence import MemoryState, SegmentedForCausalLM
from tessera.models.saving.loading import load_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PIECE = 1 << 16  # characters tokenized at once


def segmented_model(folder: str, where: str) -> SegmentedForCausalLM:
    """The model in `folder`, which must read in segments."""
    model = load_model(folder)
    if not isinstance(model, SegmentedForCausalLM):
        kind = model.config.model_type
        raise TesseraError(f"{where}: MODEL must be an ARMT, RMT or PRMT model; got {kind!r} in {folder!r}.")
    return model


def stored_memory(model: SegmentedForCausalLM, path: str, where: str) -> MemoryState:
    """The memory in file `path`, which must be one of this model's."""
    state = model.state_class.load(path)
    state.expect_fits(model.empty_memory(1), where)
    return state


def require_place(out: Path, overwrite: bool) -> None:
    """Raise `TesseraError` unless a memory can be stored in `out`: before a long text is read, not after it.

    A file that exists is replaced if it is a stored memory and `overwrite` says so; no other file ever is.
    """
    if not out.resolve().parent.is_dir():
        raise TesseraError(f"memorize: --out must lie in an existing folder; got {str(out)!r}.")
    expect_writable(out, "memorize", "--out")
    if not out.exists():
        return
    if not is_stored_memory(out):
        raise TesseraError(
            f"memorize: --out must be a new file; got {str(out)!r}, which exists and is no stored memory."
        )
    if not overwrite:
        raise TesseraError(f"memorize: --out must be a new file; got {str(out)!r}, a stored memory. Use --overwrite.")


def is_stored_memory(path: Path) -> bool:
    """Whether `path` is a file that `MemoryState.save` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            return "tessera_memory" in (file.metadata() or {})
    except (SafetensorError, OSError):
        return False


class Readable(Protocol):
    """What `token_stream` needs of a text."""

    def read(self, count: int, /) -> str:
        """About `count` characters; "" at the end."""


def token_stream(file: Readable, tokenizer: "PreTrainedTokenizerFast", where: str = "memorize: FILE") -> Iterator[int]:
    """Tokens of a text, which is cut at white space into pieces that are tokenized one by one.

    Raises:
        TesseraError: when the first token is asked for and there is none.
    """
    tokens = _pieces(file, tokenizer)
    first = next(tokens, None)
    if first is None:
        raise TesseraError(f"{where} must hold text; got an empty one.")
    yield first
    yield from tokens


def _pieces(file: Readable, tokenizer: "PreTrainedTokenizerFast") -> Iterator[int]:
    rest = ""
    while piece := file.read(PIECE):
        rest += piece
        cut = max(rest.rfind(" "), rest.rfind("\n"))
        if cut > 0:  # the white space goes with the word behind it, as byte-level tokenizers have it
            yield from tokenizer(rest[:cut], add_special_tokens=False)["input_ids"]
            rest = rest[cut:]
    if rest:
        yield from tokenizer(rest, add_special_tokens=False)["input_ids"]
