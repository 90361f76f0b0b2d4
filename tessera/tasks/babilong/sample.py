"""One sample: the facts of a story in their order, anywhere between the sentences of books."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from tessera.tasks.babilong.noise import Book, Span, draw_noise
from tessera.tasks.babilong.stories import Question, Story

RESERVED = 20  # tokens for question and answer, as published


@dataclass(frozen=True)
class Context:
    """What is read before the question: noise with facts in it, never held as one list.

    Attributes:
        spans: the noise. facts: tokens of each. positions: fact i comes before sentence `positions[i]` of the noise.
    """

    spans: tuple[Span, ...]
    facts: tuple[np.ndarray, ...]
    positions: tuple[int, ...]

    @property
    def length(self) -> int:
        """Tokens."""
        noise = sum(len(span.tokens(0, span.num_sentences)) for span in self.spans)
        return noise + sum(len(fact) for fact in self.facts)

    def pieces(self) -> Iterator[np.ndarray]:
        """The tokens from first to last, in pieces of at most a book."""
        pending, before = list(zip(self.positions, self.facts)), 0
        for span in self.spans:
            begin = 0
            while pending and pending[0][0] < before + span.num_sentences:
                place, fact = pending.pop(0)
                yield span.tokens(begin, place - before)
                yield fact
                begin = place - before
            yield span.tokens(begin, span.num_sentences)
            before += span.num_sentences
        for _, fact in pending:
            yield fact

    def fact_ends(self) -> list[int]:
        """How many tokens stand up to the end of each fact."""
        ends: list[int] = []
        place = 0
        for piece in self.pieces():
            place += len(piece)
            if len(ends) < len(self.facts) and piece is self.facts[len(ends)]:
                ends.append(place)
        return ends

    def tokens(self) -> np.ndarray:
        """All of them."""
        return np.concatenate([*self.pieces(), np.empty(0, dtype=np.int32)])


@dataclass(frozen=True)
class Sample:
    """A context, its story, and the question that is asked of it."""

    context: Context
    story: Story
    question: Question


def fits(facts: Sequence[np.ndarray], length: int, share: float) -> bool:
    """Whether the facts of a story take at most `share` of a sample of `length` tokens, and leave room to ask."""
    return sum(len(fact) for fact in facts) <= min(share * length, length - RESERVED)


def hide(facts: Sequence[np.ndarray], books: Sequence[Book], length: int, random: Random) -> Context:
    """Facts at random places of noise that fills `length - 20` tokens together with them.

    Places are drawn with replacement from 0 to the number of sentences, and sorted.
    """
    spans = draw_noise(books, length - RESERVED - sum(len(fact) for fact in facts), random)
    sentences = sum(span.num_sentences for span in spans)
    positions = sorted(random.randint(0, sentences) for _ in facts)
    return Context(tuple(spans), tuple(facts), tuple(positions))
