"""Tokens: all words of the stories and the most frequent ones of the books, or those of somebody's tokenizer."""

from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from tessera.base.errors import TesseraError
from tessera.data.encoding import uncut
from tessera.data.sources import text_files
from tessera.data.text_files import text_of_file
from tessera.papers.babilong.stories import DROPS, GIVERS, MOVES, PEOPLE, PLACES, TAKES, THINGS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

UNKNOWN, PAD, GENERATE, END = SPECIAL_TOKENS = ("<unk>", "<pad>", "<generate>", "<end>")
NAMES = " ".join([*PEOPLE, *GIVERS, *PLACES, *THINGS])
STORY_WORDS = " ".join(
    [NAMES, *MOVES, *TAKES, *DROPS]
    + ["the gave to is north south east west of where was before what did give who received last ? ."]
)


class Words(NamedTuple):
    """What decides a vocabulary.

    Attributes:
        books: a name of bundled ones, a file, a folder, a glob, or several. size: words with a token of their own.
        tokenizer: somebody's, in place of words. first: a text whose words have a token before those of books.
        contents: a checksum of the files, which may get others under their names while Python runs.
    """

    books: str | tuple[str, ...]
    size: int
    tokenizer: str | None = None
    first: str = STORY_WORDS
    contents: str = ""


@lru_cache(maxsize=8)
def vocabulary_of(words: Words) -> Tokenizer:
    """Lower-case words and punctuation: special tokens, the words of `first`, then the books' most frequent ones.

    All books count: which words have a token tells nothing about a text. With `tokenizer`: that one, for any books.
    """
    if words.tokenizer is not None:
        return uncut(pretrained(words.tokenizer))
    tokenizer = Tokenizer(models.WordLevel({}, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    own = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(words.first.lower())]
    counter = trainers.WordLevelTrainer(vocab_size=words.size, show_progress=False)
    tokenizer.train_from_iterator(("".join(text_of_file(file)) for file in text_files(words.books)), counter)
    frequent = [word for word, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    known = list(dict.fromkeys([*SPECIAL_TOKENS, *own, *frequent]))[: words.size]
    tokenizer.model = models.WordLevel({word: index for index, word in enumerate(known)}, unk_token=UNKNOWN)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


@lru_cache(maxsize=8)
def pretrained(path: str) -> "PreTrainedTokenizerFast":
    """The tokenizer in `path`, read once. Raises `TesseraError` unless it knows the end of a text."""
    from tessera.data.pretrained_tokenizers import pretrained_tokenizer

    tokenizer = pretrained_tokenizer(path)
    if tokenizer.eos_token is None:
        raise TesseraError(f"BABILong: tokenizer {path} must have an eos_token, which ends an answer; got none.")
    return tokenizer


@lru_cache(maxsize=1 << 14)
def sentence_tokens(words: Words, text: str) -> np.ndarray:
    """Tokens of a sentence of a story, made once: stories have few different ones. Not to be written to."""
    tokens = np.array(vocabulary_of(words).encode(text, add_special_tokens=False).ids, np.int32)
    tokens.setflags(write=False)
    return tokens


def decode(vocabulary: Tokenizer, ids: Iterable[int]) -> str:
    """The text; of the stories' own vocabulary words and punctuation, with a space between each."""
    return vocabulary.decode([int(token) for token in ids], skip_special_tokens=False)


def token_of(vocabulary: Tokenizer, word: str) -> int:
    """The token of one of the vocabulary's words."""
    token = vocabulary.token_to_id(word)
    assert token is not None, f"{word} is not in the vocabulary"
    return token
