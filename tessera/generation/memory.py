"""Texts read into the memory of a model that reads in segments, and questions asked of a stored memory."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from tessera.base.checkpoints import tensor_checksum
from tessera.base.errors import TesseraError, expect
from tessera.base.files import expect_output, expect_plain_file, writing
from tessera.data.sources import STORIES, text_files
from tessera.models.recurrence import MemoryState, SegmentedForCausalLM
from tessera.models.recurrence.state import MODEL
from tessera.models.saving.loading import load_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def segmented_model(folder: str, where: str) -> SegmentedForCausalLM:
    """The model in `folder`, which must read in segments."""
    model = load_model(folder)
    if not isinstance(model, SegmentedForCausalLM):
        kind = model.config.model_type
        raise TesseraError(f"{where}: MODEL must be an ARMT, RMT or PRMT model; got {kind!r} in {folder!r}.")
    return model


def fingerprint(model: SegmentedForCausalLM, tokenizer: "PreTrainedTokenizerFast") -> str:
    """What changes with the model's weights or settings, or with its tokenizer: a memory of others means nothing."""
    settings = model.config.to_dict()
    for name in ("transformers_version", "dtype", "_name_or_path"):  # another release may write them otherwise
        settings.pop(name, None)
    parts = [settings, tensor_checksum(dict(model.named_parameters())), tokenizer.backend_tokenizer.to_str()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def store_memory(
    memory: MemoryState, model: SegmentedForCausalLM, tokenizer: "PreTrainedTokenizerFast", path: Path
) -> None:
    """Write `memory` with the fingerprint of its model. Raises `TesseraError` where it is NaN or cannot be written."""
    finite = all(bool(tensor.isfinite().all()) for tensor in memory.tensors().values())
    advice = "The text drives this model out of range: use one that was trained on such lengths."
    expect(finite, "memorize", "the memory", "be finite", "NaN or infinity", advice)
    with writing(path):
        memory.save(path, fingerprint(model, tokenizer))


def stored_memory(
    model: SegmentedForCausalLM, tokenizer: "PreTrainedTokenizerFast", path: str, where: str
) -> MemoryState:
    """The memory in file `path`, which must be one of this model's. Files of earlier releases do not say whose."""
    expect_plain_file(Path(path), where, "--memory")
    state = model.state_class.load(path)
    with safe_open(path, framework="pt") as file:
        made_by = file.metadata().get(MODEL)
    is_own = made_by in (None, fingerprint(model, tokenizer))
    expect(is_own, where, "--memory", "be one that this model read", f"{path!r}, of other weights, settings or tokens")
    state.expect_fits(model.empty_memory(1), where)
    return state


def require_place(out: Path, overwrite: bool) -> None:
    """Raise `TesseraError` unless a memory can be stored in `out`: before a long text is read, not after it.

    A file that exists is replaced if it is a stored memory and `overwrite` says so; no other file ever is.
    """
    expect_output(out, "memorize", "--out", is_stored_memory, "a stored memory")
    if out.exists() and not overwrite:
        raise TesseraError(f"memorize: --out must be a new file; got {str(out)!r}, a stored memory. Use --overwrite.")


def is_stored_memory(path: Path) -> bool:
    """Whether `path` is a file that `MemoryState.save` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            return "tessera_memory" in (file.metadata() or {})
    except (SafetensorError, OSError):
        return False


def text_paths(name: str, where: str, argument: str) -> list[Path]:
    """The text files that `name` names: a file, a folder or a glob of such, or one of the bundled books."""
    if (STORIES / name).is_file() and not Path(name).exists():
        return [STORIES / name]
    try:
        return text_files(name)
    except TesseraError:
        books = ", ".join(path.name for path in text_files("stories"))
        reason = "does not exist"
        if Path(name).exists():
            reason = "holds no text file" if Path(name).is_dir() else "is no plain file; pipe it in with memorize -"
        raise TesseraError(
            f"{where}: {argument} must be a text file, a folder of such, or a bundled book ({books}); got {name!r}, "
            f"which {reason}."
        ) from None
