"""One sample: the facts of a story in their order, anywhere between consecutive sentences of books."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, compress, cycle
from pathlib import Path
from random import Random

import numpy as np

from tessera.base.errors import TesseraError
from tessera.data.sources import VALIDATION_STORIES, text_files
from tessera.data.text_files import text_of_file
from tessera.papers.babilong.stories import Question, Story
from tessera.papers.babilong.vocabulary import Words, vocabulary_of

SENTENCE_END = re.compile(r"(?<=[.!?])[\"”’')_]*\s+")
Source = str | tuple[str, ...]  # of books: a name of bundled ones, a file, a folder, a glob, or several
SHORTEST = 10  # tokens; shorter sentences are left out, as published
RESERVED = 20  # tokens for question and answer, as published


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
    """Sentences of a book from number `first` on; `starts` is as the book's, and may end inside the last of them."""

    book: Book
    first: int
    starts: np.ndarray

    @property
    def num_sentences(self) -> int:
        """The number of sentences."""
        return len(self.starts) - 1

    def tokens(self, begin: int, end: int) -> np.ndarray:
        """Those of the span's sentences `begin` to `end` (excluded)."""
        return self.book.tokens[self.starts[begin] : self.starts[end]]


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
    if split == "validation":
        return validation if test is None else [*validation, *tests]
    return tests if split == "test" else [file for file in others if file not in {*tests, *validation}]


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
            return [*spans, Span(book, begin, np.append(book.starts[begin : np.searchsorted(book.starts, stop)], stop))]
        spans.append(Span(book, begin, book.starts[begin : end + 1]))
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
    spaced = [f" {sentence}" for sentence in SENTENCE_END.split(" ".join("".join(text_of_file(file)).split()))]
    encodings = vocabulary.encode_batch_fast(spaced, add_special_tokens=False)
    sentences = [np.array(ids, dtype=np.int32) for encoding in encodings if len(ids := encoding.ids) >= SHORTEST]
    if not sentences:
        raise TesseraError(f"{file}: must hold sentences of at least {SHORTEST} words; got none.")
    starts = np.concatenate([[0], np.cumsum([len(sentence) for sentence in sentences])])
    return Book(file.name, np.concatenate(sentences), starts)


@dataclass(frozen=True)
class Lookalikes:
    """Puts words of stories, and sentences that are almost facts, into the noise of one context.

    Attributes:
        share, near_facts: `lookalikes` and `near_facts` of `BABILong`. words: tokens, any of which replaces another.
        facts: tokens of each that there is. names: tokens of people, places and things.
        seed: of the context; the same places and words come each time.
    """

    share: float
    words: np.ndarray
    near_facts: float
    facts: tuple[np.ndarray, ...]
    names: np.ndarray
    seed: int

    def into(self, tokens: np.ndarray, place: int) -> np.ndarray:
        """`tokens` of the noise, which begin with its sentence `place`, some of them replaced."""
        random = np.random.default_rng([self.seed, place])
        replaced = random.random(len(tokens)) < self.share
        changed = np.where(replaced, random.choice(self.words, len(tokens)), tokens)
        for start in np.flatnonzero(random.random(len(tokens)) < self.near_facts):
            fact = self.facts[random.integers(len(self.facts))][: len(tokens) - start].copy()
            names = np.flatnonzero(np.isin(fact, self.names))
            if len(names):
                fact[random.choice(names)] = random.choice(tokens)
                changed[start : start + len(fact)] = fact
        return changed


@dataclass(frozen=True)
class Context:
    """What is read before the question: noise with facts in it, never held as one list.

    Attributes:
        spans: the noise. facts: tokens of each. positions: fact i comes before sentence `positions[i]` of the noise.
        lookalikes: what replaces words of the noise; None: nothing.
    """

    spans: tuple[Span, ...]
    facts: tuple[np.ndarray, ...]
    positions: tuple[int, ...]
    lookalikes: Lookalikes | None = None

    def pieces(self) -> Iterator[tuple[np.ndarray, bool]]:
        """The tokens from first to last, in pieces of at most a book, each a fact or none."""
        pending, before = list(zip(self.positions, self.facts)), 0
        for span in self.spans:
            begin = 0
            while pending and pending[0][0] < before + span.num_sentences:
                place, fact = pending.pop(0)
                yield self._noise(span, begin, place - before, before), False
                yield fact, True
                begin = place - before
            yield self._noise(span, begin, span.num_sentences, before), False
            before += span.num_sentences
        for _, fact in pending:
            yield fact, True

    def _noise(self, span: Span, begin: int, end: int, before: int) -> np.ndarray:
        tokens = span.tokens(begin, end)
        return tokens if self.lookalikes is None else self.lookalikes.into(tokens, before + begin)

    def fact_ends(self) -> list[int]:
        """How many tokens stand up to the end of each fact."""
        lengths, are_facts = zip(*((len(piece), is_fact) for piece, is_fact in self.pieces()))
        return list(compress(accumulate(lengths), are_facts))

    def is_fact(self) -> np.ndarray:
        """(T,): whether each token belongs to a fact."""
        return np.concatenate([np.full(len(piece), is_fact) for piece, is_fact in self.pieces()])

    def tokens(self) -> np.ndarray:
        """All of them."""
        return np.concatenate([piece for piece, _ in self.pieces()])


@dataclass(frozen=True)
class Sample:
    """A context, its story, and the question that is asked of it."""

    context: Context
    story: Story
    question: Question


def has_room(facts: Sequence[np.ndarray], length: int, share: float) -> bool:
    """Whether the facts of a story take at most `share` of a sample of `length` tokens, and leave room to ask."""
    return sum(len(fact) for fact in facts) <= min(share * length, length - RESERVED)


@dataclass(frozen=True)
class HalfFacts:
    """Puts ends of facts, such as "to the garden", at borders of segments: they hold one name of two and tell nothing.

    Attributes:
        segment: tokens of one. first, last: `half_facts` and `cut_facts` of `BABILong`.
        facts: tokens of each that there is, with the stop. names: tokens of people, places and things.
    """

    segment: int
    first: float
    last: float
    facts: tuple[np.ndarray, ...]
    names: np.ndarray

    def into(self, tokens: np.ndarray, is_fact: np.ndarray, random: Random) -> np.ndarray:
        """`tokens` of a context, some of them replaced."""
        changed = tokens.copy()
        for border in range(self.segment, len(tokens), self.segment):
            if self.first and random.random() < self.first:
                self._put_behind(border, changed, is_fact, random)
            if self.last and random.random() < self.last:
                self._put_before(border, changed, is_fact, random)
        return changed

    def _put_behind(self, border: int, changed: np.ndarray, is_fact: np.ndarray, random: Random) -> None:
        fact = random.choice(self.facts)
        if is_fact[max(0, border - len(fact)) : border + len(fact)].any():
            return
        stop = random.randrange(2)  # half of the time without it: in books the sentence goes on
        end = self._end_of(fact, len(fact) - stop, random)[: len(changed) - border]
        changed[border : border + len(end)] = end

    def _put_before(self, border: int, changed: np.ndarray, is_fact: np.ndarray, random: Random) -> None:
        fact = random.choice(self.facts)
        if is_fact[max(0, border - 2 * len(fact)) : border + len(fact)].any():
            return
        end = self._end_of(fact, len(fact) - 1, random)[-self.segment :]
        begin = border - len(end) - random.randrange(1 + min(2, self.segment - len(end)))
        changed[begin : begin + len(end)] = end

    def _end_of(self, fact: np.ndarray, stop: int, random: Random) -> np.ndarray:
        """From anywhere behind its last name but one to `stop`."""
        last_but_one = int(np.flatnonzero(np.isin(fact, self.names))[-2])
        return fact[random.randrange(last_but_one + 1, len(fact) - 1) : stop]


def hide(
    facts: Sequence[np.ndarray],
    books: Sequence[Book],
    length: int,
    random: Random,
    lookalikes: Lookalikes | None = None,
    segment: int = 0,
    split_facts: float | None = 0.0,
) -> Context:
    """Facts at random places of noise that fills `length - 20` tokens together with them.

    Places are drawn with replacement from 0 to the number of sentences, and sorted. With a `segment`, a share
    `split_facts` of them then moves to where a border behind every so many tokens cuts the fact in two; with None
    every fact that one would cut moves to the nearest place where none does.
    """
    spans = draw_noise(books, length - RESERVED - sum(len(fact) for fact in facts), random)
    sentences = sum(span.num_sentences for span in spans)
    positions = sorted(random.randint(0, sentences) for _ in facts)
    if segment and split_facts != 0:
        positions = _moved(segment, split_facts, positions, facts, spans, random)
    return Context(tuple(spans), tuple(facts), tuple(positions), lookalikes)


def _moved(
    segment: int, share: float | None, positions: Sequence[int], facts: Sequence[np.ndarray], spans: Sequence[Span],
    random: Random,
) -> list[int]:  # fmt: skip
    """`positions` in the noise, a share of them moved to the nearest one at which a border cuts the fact.

    Facts keep their order. The more of them there are for the borders, the fewer find a place, and the further
    back they lie: with a share of a half, a quarter of QA1's facts are cut in eight segments, nearly half in 32.
    Without a share every fact moves to the nearest position at which none cuts it.
    """
    moved: list[int] = []
    # How many tokens of noise stand before each of its sentences; the last entry is how many there are.
    starts = np.append(0, np.concatenate([np.diff(span.starts) for span in spans]).cumsum())
    for position, fact in zip(positions, facts):
        earliest = moved[-1] if moved else 0
        place = max(position, earliest)
        if share is None or random.random() < share:
            rest = segment - starts[earliest:] % segment  # tokens up to the next border
            fitting = earliest + np.flatnonzero((rest < len(fact)) == (share is not None))
            if len(fitting):
                place = int(fitting[np.abs(fitting - position).argmin()])
        moved.append(place)
        starts = starts + len(fact)
    return moved
