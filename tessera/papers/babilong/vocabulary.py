"""Words as tokens: all words of the stories, and the most frequent ones of the books."""

from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from tessera.data.sources import text_files
from tessera.data.text_files import text_of_file
from tessera.papers.babilong.stories import DROPS, GIVERS, MOVES, PEOPLE, PLACES, TAKES, THINGS

UNKNOWN, PAD, GENERATE, END = SPECIAL_TOKENS = ("<unk>", "<pad>", "<generate>", "<end>")
NAMES = " ".join([*PEOPLE, *GIVERS, *PLACES, *THINGS])
STORY_WORDS = " ".join(
    [NAMES, *MOVES, *TAKES, *DROPS]
    + ["the gave to is north south east west of where was before what did give who received last ? ."]
)


@lru_cache(maxsize=8)
def vocabulary_of(source: str | tuple[str, ...], vocab_size: int) -> Tokenizer:
    """Lower-case words and punctuation: special tokens, the stories' words, then the books' most frequent ones.

    All books of `source` count: which words have a token tells a model nothing about a text.
    """
    tokenizer = Tokenizer(models.WordLevel({}, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    own = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(STORY_WORDS.lower())]
    counter = trainers.WordLevelTrainer(vocab_size=vocab_size, show_progress=False)
    tokenizer.train_from_iterator(("".join(text_of_file(file)) for file in text_files(source)), counter)
    frequent = [word for word, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    words = list(dict.fromkeys([*SPECIAL_TOKENS, *own, *frequent]))[:vocab_size]
    tokenizer.model = models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=UNKNOWN)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return tokenizer


def encode(vocabulary: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Tokens of each text."""
    return [encoding.ids for encoding in vocabulary.encode_batch_fast(list(texts), add_special_tokens=False)]


@lru_cache(maxsize=1 << 14)
def sentence_tokens(source: str | tuple[str, ...], vocab_size: int, text: str) -> np.ndarray:
    """Tokens of a sentence of a story, made once: stories have few different ones. Not to be written to."""
    tokens = np.array(vocabulary_of(source, vocab_size).encode(text, add_special_tokens=False).ids, np.int32)
    tokens.setflags(write=False)
    return tokens


def decode(vocabulary: Tokenizer, ids: Iterable[int]) -> str:
    """Words and punctuation with a space between each, as the solver reads them."""
    return " ".join(word_of(vocabulary, int(token)) for token in ids)


def token_of(vocabulary: Tokenizer, word: str) -> int:
    """The token of one of the vocabulary's words."""
    token = vocabulary.token_to_id(word)
    assert token is not None, f"{word} is not in the vocabulary"
    return token


def word_of(vocabulary: Tokenizer, token: int) -> str:
    """The word of a token; `UNKNOWN` where the vocabulary has none."""
    return vocabulary.id_to_token(token) or UNKNOWN
