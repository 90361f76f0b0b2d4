"""A recipe's tokenizer and token stores, made once and kept beside its runs."""

import hashlib
import json
import logging
import os
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from tessera.base.beginnings import BEGINS_WITH_BOS
from tessera.base.checkpoints import publish, verify
from tessera.base.errors import expect
from tessera.base.files import remove, writing
from tessera.data.pretrained_tokenizers import pretrained_tokenizer
from tessera.data.sources import TextSource, text_source
from tessera.data.store import open_or_build, working_in
from tessera.data.tokenizers import build_tokenizer
from tessera.data.windows import Split
from tessera.recipes.sections import DataSection, Recipe

STORES = "stores"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Corpus:
    """Tokenizer, training tokens and validation tokens of a run."""

    tokenizer: PreTrainedTokenizerFast
    training: Split
    validation: Split


def open_corpus(recipe: Recipe, run: Path, *, saved_tokenizer: bool = True) -> Corpus:
    """Tokenise what is not tokenised yet. Writes nothing into `run`.

    Stores and trained tokenizers live in `stores/` beside the run and are shared by all runs there that read the same
    text in the same way. With `saved_tokenizer`, the tokenizer that `run` holds already is used, if it holds one.
    Raises `TesseraError` for text that is missing, empty, not UTF-8 or shorter than a context.
    """
    cache = run.resolve().parent / STORES
    training, validation = _sources(recipe.data)
    _warn_of_validation_in_training(training, validation)
    if saved_tokenizer and (run / "tokenizer.json").is_file():
        tokenizer = pretrained_tokenizer(str(run))
    else:
        tokenizer = _new_tokenizer(recipe, training, cache)
        tokenizer.init_kwargs[BEGINS_WITH_BOS] = recipe.data.begin_token
    special_tokens: dict[str, Any] = {"begin_token": recipe.data.begin_token, "end_token": recipe.data.end_token}
    everything = Split.of(open_or_build(training, tokenizer, cache, **special_tokens))
    if validation is None:
        parts = everything.divided(recipe.data.validation_fraction)
    else:
        parts = everything, Split.of(open_or_build(validation, tokenizer, cache, **special_tokens))
    corpus = Corpus(tokenizer, *parts)
    corpus.training.require(recipe.data.context, "the training text")
    corpus.validation.require(recipe.data.context, "the validation text")
    return corpus


def _sources(data: DataSection) -> tuple[TextSource, TextSource | None]:
    """(training text, validation text); None: hold out a part of the training text."""
    training = validation = text_source(data.source, data.split, **data.text_options)
    is_held_out = data.validation is None and not training.has_splits
    if not is_held_out:
        spec = data.source if data.validation is None else data.validation
        validation = text_source(spec, data.validation_split, **data.text_options)
    for name, source in (("split", training), ("validation_split", validation)):
        split = getattr(data, name)
        is_meant = source.has_splits or split == getattr(DataSection(), name)
        expect(is_meant, "data", name, f"be left out for {source.name}, which has no splits", repr(split))
    is_file = bool(training.files or validation.files)
    needed = f"be left out for {training.name}, which has documents of its own"
    expect(is_file or data.separator is None, "data", "separator", needed, repr(data.separator))
    return training, None if is_held_out else validation


def _warn_of_validation_in_training(training: TextSource, validation: TextSource | None) -> None:
    """Where a file stands twice in the text whose end is held out, or in both texts, or both are one split."""
    times = Counter(content for _, content in training.files)
    if validation is None:
        twice = sorted({name for name, content in training.files if times[content] > 1})
        where, why = twice, "twice in the training text, whose end is held out for validation, and may be trained on"
    else:
        where = sorted({name for name, content in validation.files if content in times})
        where = where or [validation.name] * (training.identity == validation.identity)
        why = "in the training text and in the validation text, whose loss is then one of text that was trained on"
    if where:
        more = f" and {len(where) - 3} more" if len(where) > 3 else ""
        log.warning(f"data: {', '.join(where[:3])}{more} stands {why}.")


def _new_tokenizer(recipe: Recipe, text: TextSource, cache: Path) -> PreTrainedTokenizerFast:
    """A tokenizer as the recipe says; one that is trained on the text is kept in the cache."""
    spec = recipe.tokenizer
    if spec.type != "bpe":
        return build_tokenizer(spec)
    name = hashlib.sha256(json.dumps([asdict(spec), text.identity]).encode()).hexdigest()[:16]
    trained = cache / f"tokenizer-{name}"
    if verify(trained) is None:
        return pretrained_tokenizer(str(trained))
    tokenizer = build_tokenizer(spec, text.pieces())
    with writing(trained), working_in(cache):
        temporary = trained.with_name(f"{trained.name}.{os.getpid()}.tmp")
        try:
            tokenizer.save_pretrained(temporary)
            if verify(trained) is not None:  # no other process has put it there meanwhile
                publish(temporary, trained)
        finally:
            remove(temporary)
    return tokenizer
