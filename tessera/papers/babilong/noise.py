"""Background text: consecutive sentences of books, as many as needed, held in memory once."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random

import numpy as np

from tessera.base.errors import TesseraError
from tessera.data.sources import VALIDATION_STORIES, text_files
from tessera.papers.babilong.vocabulary import encode, vocabulary_of

SENTENCE_END = re.compile(r"(?<=[.!?])[\"”’')_]*\s+")
SHORTEST = 10  # tokens; shorter sentences are left out, as published


@dataclass(frozen=True)
class Book:
    """The sentences of a book, one after the other: sentence i is `tokens[starts[i] : starts[i + 1]]`."""

    name: str
    tokens: np.ndarray
    starts: np.ndarray

    @property
    def num_sentences(self) -> int:
        """How many."""
        return len(self.starts) - 1


@dataclass(frozen=True)
class Span:
    """Sentences `first` to `last` (excluded) of a book, the last one cut after `cut` tokens (0: not cut)."""

    book: Book
    first: int
    last: int
    cut: int = 0

    @property
    def num_sentences(self) -> int:
        """How many."""
        return self.last - self.first

    def tokens(self, begin: int, end: int) -> np.ndarray:
        """Those of the span's sentences `begin` to `end` (excluded)."""
        stop = self.book.starts[self.first + end]
        if self.cut and end == self.num_sentences:
            stop = self.book.starts[self.last - 1] + self.cut
        return self.book.tokens[self.book.starts[self.first + begin] : stop]


def book_files(source: str | Sequence[str], split: str) -> list[Path]:
    """The books of a split: every sixth is for tests, the one before it for validation, the others for training.

    Of the bundled stories the validation book is the one that it is everywhere in the library.
    """
    files = text_files(source)
    if len(files) < 3:
        raise TesseraError(f"babilong: noise must be at least three books, to keep splits apart; got {len(files)}.")
    named = [file for file in files if file.name in VALIDATION_STORIES]
    others = [file for file in files if file not in named]
    tests = others[5::6] or others[-1:]
    validation = named or [file for file in others if file not in tests][4::5] or others[-2:-1]
    if split == "test":
        return tests
    return validation if split == "validation" else [file for file in others if file not in {*tests, *validation}]


def draw_noise(books: Sequence[Book], length: int, random: Random) -> list[Span]:
    """Consecutive sentences from a random place of a random book, to `length` tokens in all; the last one is cut.

    Where a book ends, another begins at a random place. Cost: O(1) per book passed.
    """
    spans: list[Span] = []
    while length > 0:
        book = random.choice(list(books))
        first = random.randrange(book.num_sentences)
        stop = book.starts[first] + length
        last = int(np.searchsorted(book.starts, stop, side="left"))
        if last > book.num_sentences:
            spans.append(Span(book, first, book.num_sentences))
            length = int(stop - book.starts[-1])
            continue
        spans.append(Span(book, first, last, int(stop - book.starts[last - 1]) if stop != book.starts[last] else 0))
        return spans
    return spans


@lru_cache(maxsize=8)
def books_of(source: str | tuple[str, ...], split: str, vocab_size: int) -> tuple[Book, ...]:
    """The books of a split in tokens of the vocabulary that their training books give."""
    vocabulary = vocabulary_of(source, vocab_size)
    return tuple(_read(file, vocabulary) for file in book_files(source, split))


def _read(file: Path, vocabulary) -> Book:
    text = " ".join(file.read_text(encoding="utf-8").split())
    sentences = [np.array(ids, dtype=np.int32) for ids in encode(vocabulary, SENTENCE_END.split(text))]
    sentences = [sentence for sentence in sentences if len(sentence) >= SHORTEST]
    if not sentences:
        raise TesseraError(f"{file}: must hold sentences of at least {SHORTEST} words; got none.")
    starts = np.concatenate([[0], np.cumsum([len(sentence) for sentence in sentences])])
    return Book(file.name, np.concatenate(sentences), starts)
