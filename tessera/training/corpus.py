"""A recipe's tokenizer and token stores, made once and kept beside its runs."""

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tessera.data.sources import TextSource, text_source
from tessera.data.store import open_or_build
from tessera.data.tokenizers import build_tokenizer
from tessera.data.windows import Split
from tessera.errors import TesseraError
from tessera.training.sections import DataSection, Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

STORES = "stores"


@dataclass(frozen=True)
class Corpus:
    """Tokenizer, training tokens and validation tokens of a run."""

    tokenizer: "PreTrainedTokenizerFast"
    training: Split
    validation: Split

    @property
    def largest_token(self) -> int:
        """The largest token id that occurs."""
        return max(split.store.description.largest_token for split in (self.training, self.validation))


def open_corpus(recipe: Recipe, run: Path) -> Corpus:
    """Tokenise what is not tokenised yet; the tokenizer is also saved in `run`.

    Stores and trained tokenizers live in `stores/` beside the run and are shared by all runs there that read the same
    text in the same way. Raises `TesseraError` for text that is missing, empty, not UTF-8 or shorter than a context.
    """
    cache = run.resolve().parent / STORES
    training, validation = _sources(recipe.data)
    tokenizer = _tokenizer(recipe, training, cache, run)
    marks = {"begin_token": recipe.data.begin_token, "end_token": recipe.data.end_token}
    whole = Split.whole(open_or_build(training, tokenizer, cache, **marks))
    if validation is None:
        parts = whole.divided(recipe.data.validation_fraction)
    else:
        parts = whole, Split.whole(open_or_build(validation, tokenizer, cache, **marks))
    corpus = Corpus(tokenizer, *parts)
    corpus.training.require(recipe.data.context, "the training text")
    corpus.validation.require(recipe.data.context, "the validation text")
    return corpus


def _sources(data: DataSection) -> tuple[TextSource, TextSource | None]:
    """(training text, validation text); None: hold out a part of the training text."""
    training = text_source(data.source, data.split, **data.text_options)
    if data.validation is not None:
        return training, text_source(data.validation, data.validation_split, **data.text_options)
    if training.has_splits:
        return training, text_source(data.source, data.validation_split, **data.text_options)
    return training, None


def _tokenizer(recipe: Recipe, text: TextSource, cache: Path, run: Path) -> "PreTrainedTokenizerFast":
    """The run's own tokenizer if it has one; else a trained one from the cache; else a new one."""
    spec = recipe.tokenizer
    if (run / "tokenizer.json").is_file():
        return _load(run)
    name = hashlib.sha256(json.dumps([asdict(spec), text.identity]).encode()).hexdigest()[:16]
    trained = cache / f"tokenizer-{name}"
    if spec.type != "bpe":
        tokenizer = build_tokenizer(spec)
    elif trained.is_dir():
        tokenizer = _load(trained)
    else:
        tokenizer = build_tokenizer(spec, text.pieces())
        _save(tokenizer, trained)
    tokenizer.save_pretrained(run)
    return tokenizer


def _load(folder: Path) -> "PreTrainedTokenizerFast":
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise TesseraError(f"{folder}: the saved tokenizer cannot be read ({error}).") from error


def _save(tokenizer: "PreTrainedTokenizerFast", folder: Path) -> None:
    """Write under another name, then rename: a folder with the right name is whole."""
    draft = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    try:
        tokenizer.save_pretrained(draft)
        if not folder.exists():
            os.replace(draft, folder)
    except OSError as error:
        raise TesseraError(f"{folder}: cannot be written ({error.strerror}).") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
