"""Tokenizers that somebody made: a folder, a tokenizer.json file, or a model of the Hugging Face hub."""

from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.utils import HFValidationError
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from tessera.base.errors import TesseraError, first_line
from tessera.base.foreign_code import expect_no_code

# What ends a text, where a tokenizer.json file alone does not say; the first one that it knows.
END_TOKENS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]")
SECONDS = 10  # to wait for the hub
NAMES = "a folder, a tokenizer.json file, or the name of a model on the Hugging Face hub"


def pretrained_tokenizer(path: str) -> "PreTrainedTokenizerFast":
    """The tokenizer in `path`. The hub is asked once, and only for what looks like a name there and is not cached.

    Raises `TesseraError`: nothing of that name, no network, or files that are damaged or hold a slow tokenizer.
    """
    location = Path(path).expanduser()
    if location.is_file():
        return _from_file(location)
    if location.is_dir():
        return _load(path, str(location), local_files_only=True)
    if location.is_absolute() or path.startswith((".", "~")) or location.suffix == ".json" or path.count("/") > 1:
        raise TesseraError(f"tokenizer: path must name {NAMES}; got {path!r}, which does not exist.")
    return _from_hub(path)


def _from_file(path: Path) -> "PreTrainedTokenizerFast":
    """A file of the tokenizers library. Settings beside it count; without them the end of a text is guessed."""
    if path.name == "tokenizer.json" and (path.parent / "tokenizer_config.json").is_file():
        return _load(str(path), str(path.parent), local_files_only=True)
    try:
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path))
    except Exception as error:  # the package raises bare Exception
        raise TesseraError(
            f"tokenizer: {path} must be a file that the tokenizers library saved ({first_line(error)})."
        ) from None
    vocabulary = tokenizer.get_vocab()
    end = next((token for token in END_TOKENS if token in vocabulary), None)
    if end is None:
        raise TesseraError(
            f"tokenizer: {path} must say which token ends a text, and has none of {', '.join(END_TOKENS)}. "
            "Put a tokenizer_config.json with eos_token beside it, and give the folder."
        )
    tokenizer.add_special_tokens({"bos_token": end, "eos_token": end, "pad_token": end})
    tokenizer.padding_side = "left"
    return tokenizer


def _from_hub(name: str) -> "PreTrainedTokenizerFast":
    try:
        return _load(name, name, local_files_only=True)
    except TesseraError:
        pass  # not in the cache
    try:
        HfApi().model_info(name, timeout=SECONDS)  # one question, where loading would ask for every file five times
    except HFValidationError:
        raise TesseraError(f"tokenizer: path must name {NAMES}; got {name!r}.") from None
    except Exception as error:  # whatever the installed HTTP client raises
        raise TesseraError(
            f"tokenizer: {name!r} is no folder here, and the hub did not give it ({first_line(error)}). "
            "Where there is a network, run AutoTokenizer.from_pretrained(name).save_pretrained(folder), and set "
            "tokenizer: {type: pretrained, path: folder}."
        ) from None
    return _load(name, name, local_files_only=False)


def _load(path: str, source: str, *, local_files_only: bool) -> "PreTrainedTokenizerFast":
    if Path(source).is_dir():
        expect_no_code(Path(source), "tokenizer")
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=local_files_only, trust_remote_code=False)
    except Exception as error:  # damaged files raise anything, down to bare Exception
        raise TesseraError(f"tokenizer: {path!r} cannot be loaded ({first_line(error)}).") from error
    if not tokenizer.is_fast:
        raise TesseraError(f"tokenizer: {path!r} must be a fast (tokenizers) one; got {type(tokenizer).__name__}.")
    return tokenizer
