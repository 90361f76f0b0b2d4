"""Choices between words in books that no model was trained on: some a sentence decides, some only an earlier page.

- *Forms of words*: which of two belongs into a sentence ("was" or "were", "a" or "an"). Each of two is right equally
  often, so that guessing has 50 %.
- *Last words*: which of four ends a sentence, given its beginning and nothing else; guessing has 25 %, and so has
  choosing the most frequent word.
- *Names*: which of four comes next, of a page whose last lines name none of them: one stands earlier on the page, the
  others in the same book, elsewhere; guessing has 25 %.

Sentences are read alone. The right answer is the author's; a model is right where it is the likeliest.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tessera.data.sources import story_files, text_files
from tessera.data.text_files import text_of_file
from tessera.evaluation.continuations import Request, continuation_likelihoods

FORMS = (
    ("is", "are"),
    ("was", "were"),
    ("has", "have"),
    ("a", "an"),
    ("he", "him"),
    ("they", "them"),
    ("this", "these"),
)
WORDS = range(6, 31)  # of a sentence
PAGE, SILENT = 600, 150  # words that are read before a name, and how many of the last do not hold it
FEWEST = 8  # times that a name stands in its book


class Choice(NamedTuple):
    """What is read, what may follow (the right one first), and of which book it is."""

    context: str
    answers: tuple[str, ...]
    book: int


def books() -> list[str]:
    """The held-out book of stories, and the bundled test books, each with its white space as single blanks."""
    files = [*story_files("validation"), *text_files("test_books")]
    return [" ".join("".join(text_of_file(file)).split()) for file in files]


def forms(text: str, book: int, count: int, random: Random) -> list[Choice]:
    """See the module: as many of each of two forms."""
    found: dict[tuple[str, str], list[Choice]] = {}
    swapped = {first: second for pair in FORMS for first, second in (pair, pair[::-1])}
    for sentence in _sentences(text):
        words = sentence.split()
        places = [place for place, word in enumerate(words) if place and word in swapped]
        if len(places) == 1:
            right, (place,) = words[places[0]], places
            rest = " ".join(words[place + 1 :])
            answers = (f" {right} {rest}", f" {swapped[right]} {rest}")
            found.setdefault((right, swapped[right]), []).append(Choice(" ".join(words[:place]), answers, book))
    chosen: list[Choice] = []
    for first, second in FORMS:
        both = [
            random.sample(part, len(part)) for part in (found.get((first, second), []), found.get((second, first), []))
        ]
        chosen += [choice for pair in zip(*both) for choice in pair][: 2 * -(-count // (2 * len(FORMS)))]
    return chosen


def last_words(text: str, book: int, count: int, random: Random) -> list[Choice]:
    """See the module; the others end sentences of the same book."""
    split = [sentence[:-1].rsplit(" ", 1) for sentence in _sentences(text) if sentence.endswith(".")]
    ends = [(context, word) for context, word in split if word.isalpha() and word.islower() and len(word) > 3]
    times = Counter(word for _, word in ends)
    chosen = random.sample(ends, min(count, len(ends))) if len(times) >= 4 else []
    return [Choice(context, _with_others(" {}.", word, times, random), book) for context, word in chosen]


def names(text: str, book: int, count: int, random: Random) -> list[Choice]:
    """See the module."""
    words = text.split()
    bare = [re.sub(r"\W+$|'s$", "", word) for word in words]
    # Capital letters inside a sentence; a word that is often small as well is no name.
    inside = Counter(
        word for before, word in zip(words, bare[1:]) if re.fullmatch(r"[A-Z][a-z]{2,}", word) and before[-1].isalnum()
    )
    small = Counter(word for word in bare if word.islower())
    known = {name for name, times in inside.items() if times >= FEWEST and small[name.lower()] < times}
    found = []
    for place in range(PAGE, len(words)):
        name = bare[place]
        if name not in known or not words[place - 1][-1].isalnum():
            continue
        page, last = set(bare[place - PAGE : place - SILENT]), set(bare[place - SILENT : place])
        if name in page and name not in last:
            others = sorted(known - page - last)
            if len(others) >= 3:
                answers = _with_others(" {}", name, {other: inside[other] for other in others}, random)
                found.append(Choice(" ".join(words[place - PAGE : place]), answers, book))
    return random.sample(found, min(count, len(found)))


def _with_others(form: str, right: str, times: Mapping[str, int], random: Random) -> tuple[str, ...]:
    """The right word and three others, drawn as often as they occur: the right one is, and would be known by that."""
    words = {right: None}
    while len(words) < 4:
        words |= dict.fromkeys(random.choices(list(times), list(times.values())))
    return tuple(map(form.format, words))


TASKS: dict[str, Callable[[str, int, int, Random], list[Choice]]] = {
    "forms of words": forms,
    "last words": last_words,
    "names": names,
}


def questions(task: str, each: int) -> list[Choice]:
    """About `each` of every book, the same ones at every call."""
    return [choice for book, text in enumerate(books()) for choice in TASKS[task](text, book, each, Random(book))]


def right_answers(model: Any, tokenizer: Any, choices: Sequence[Choice]) -> Tensor:
    """1 where the right answer is the likeliest, else 0 (N,)."""
    requests = [
        Request(tokenizer(choice.context)["input_ids"], _continuation(tokenizer, choice.context, answer))
        for choice in choices
        for answer in choice.answers
    ]
    found = iter(continuation_likelihoods(model, requests, progress=True))
    likelihoods = [[next(found).log_likelihood for _ in choice.answers] for choice in choices]
    return torch.tensor([float(of_right > max(others)) for of_right, *others in likelihoods])


def _continuation(tokenizer: Any, context: str, answer: str) -> list[int]:
    """The tokens behind those of the context."""
    return tokenizer(context + answer)["input_ids"][len(tokenizer(context)["input_ids"]) :]


def _sentences(text: str) -> Iterator[str]:
    """Sentences of one line without speech, in a length that `WORDS` allows."""
    for sentence in re.split(r"(?<=[.!?]) ", text):
        if len(sentence.split()) in WORDS and re.fullmatch(r"[A-Z][\w ,;'-]*[.!?]", sentence):
            yield sentence
