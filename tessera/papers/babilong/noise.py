"""Background text: consecutive sentences of books, as many as needed, held in memory once."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from random import Random

import numpy as np

from tessera.base.errors import TesseraError
from tessera.data.sources import VALIDATION_STORIES, text_files
from tessera.data.text_files import text_of_file
from tessera.papers.babilong.vocabulary import Words, encode, vocabulary_of

SENTENCE_END = re.compile(r"(?<=[.!?])[\"”’')_]*\s+")
Source = str | tuple[str, ...]  # of books: a name of bundled ones, a file, a folder, a glob, or several
SHORTEST = 10  # tokens; shorter sentences are left out, as published


@dataclass(frozen=True)
class Book:
    """The sentences of a book, one after the other: sentence i is `tokens[starts[i] : starts[i + 1]]`."""

    name: str
    tokens: np.ndarray
    starts: np.ndarray

    @property
    def num_sentences(self) -> int:
        """The number of sentences."""
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
        """The number of sentences."""
        return self.last - self.first

    def tokens(self, begin: int, end: int) -> np.ndarray:
        """Those of the span's sentences `begin` to `end` (excluded)."""
        stop = self.book.starts[self.first + end]
        if self.cut and end == self.num_sentences:
            stop = self.book.starts[self.last - 1] + self.cut
        return self.book.tokens[self.book.starts[self.first + begin] : stop]


def book_files(source: Source, split: str, test: Source | None = None) -> list[Path]:
    """The books of a split: every sixth is for tests, the one before it for validation, the others for training.

    Of the bundled stories the validation book is the one that it is everywhere in the library. With books of `test` for
    tests, the sixth ones are for validation too.
    """
    if test is not None and split == "test":
        return text_files(test)
    files = text_files(source)
    if len(files) < 3:
        raise TesseraError(f"babilong: noise must be at least three books, to keep splits apart; got {len(files)}.")
    named = [file for file in files if file.name in VALIDATION_STORIES]
    others = [file for file in files if file not in named]
    tests = others[5::6] or others[-1:]
    validation = named or [file for file in others if file not in tests][4::5] or others[-2:-1]
    if split == "test":
        return tests
    if split == "validation" and test is not None:
        return [*validation, *tests]
    return validation if split == "validation" else [file for file in others if file not in {*tests, *validation}]


def draw_noise(books: Sequence[Book], length: int, random: Random) -> list[Span]:
    """Consecutive sentences from a random place of a random book, to `length` tokens in all; the last one is cut.

    Where the book ends, the others follow in random order, each from its beginning, then what stands before that place:
    no sentence comes twice before all have come. Cost: O(1) per book passed.
    """
    first_book = random.choice(list(books))
    first = random.randrange(first_book.num_sentences)
    spans: list[Span] = []
    for book, begin, end in _stretches(books, first_book, first, random):
        stop = book.starts[begin] + length
        if stop <= book.starts[end]:
            last = int(np.searchsorted(book.starts, stop, side="left"))
            cut = int(stop - book.starts[last - 1]) if stop != book.starts[last] else 0
            return [*spans, Span(book, begin, last, cut)]
        spans.append(Span(book, begin, end))
        length -= int(book.starts[end] - book.starts[begin])
    raise AssertionError("stretches have no end")


def _stretches(books: Sequence[Book], first_book: Book, first: int, random: Random) -> Iterator[tuple[Book, int, int]]:
    """A book and sentences of it (from, to), all books around a circle, without end."""
    yield first_book, first, first_book.num_sentences
    others = [book for book in books if book is not first_book]
    circle = [(book, 0, book.num_sentences) for book in random.sample(others, len(others))]
    circle += [(first_book, 0, first)] if first else []
    yield from cycle([*circle, (first_book, first, first_book.num_sentences)])


@lru_cache(maxsize=8)
def books_of(words: Words, split: str, test: Source | None = None) -> tuple[Book, ...]:
    """The books of a split (`book_files`) in tokens of `vocabulary_of(words)`."""
    vocabulary = vocabulary_of(words)
    return tuple(_read(file, vocabulary) for file in book_files(words.books, split, test))


def _read(file: Path, vocabulary) -> Book:
    text = " ".join("".join(text_of_file(file)).split())
    sentences = [np.array(ids, dtype=np.int32) for ids in encode(vocabulary, SENTENCE_END.split(text))]
    sentences = [sentence for sentence in sentences if len(sentence) >= SHORTEST]
    if not sentences:
        raise TesseraError(f"{file}: must hold sentences of at least {SHORTEST} words; got none.")
    starts = np.concatenate([[0], np.cumsum([len(sentence) for sentence in sentences])])
    return Book(file.name, np.concatenate(sentences), starts)
