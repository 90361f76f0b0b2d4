"""Document questions for models that are trained here: stories as documents, words as tokens."""

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from tessera.base.errors import expect
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.papers.babilong.stories import MOVES, PLACES
from tessera.tasks.task import SPLIT_TENTHS, TASKS, Task, TokenExamples, expect_split

PAD, DOCUMENT, QUESTION, ANSWER = "<pad>", "document", "question", "answer"
# The words of a fact between person and place, and of a question around the person, from the plainest form to the full
# one. In all but the last as many words stand behind the person in a question as in a fact.
GAPS = ((), ("the",), ("to", "the"), ("went", "to", "the"))
QUESTION_FORMS = ("question : {}", "question : {} ?", "question : {} ? answer", "question : where is {} ? answer :")
FULL_WORDING = len(GAPS)
_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
NUM_NAMES = 4900


class StoryDocument(NamedTuple):
    """Facts about people, and where each of them is at the end: (person, place) pairs."""

    facts: tuple[str, ...]
    places: tuple[tuple[str, str], ...]


class Sample(NamedTuple):
    """Documents, and the questions about them: a person, and where that person is."""

    documents: tuple[StoryDocument, ...]
    questions: tuple[tuple[str, str], ...]


@TASKS.register("document_qa")
@dataclass(frozen=True)
class DocumentQA(Task):
    """Many short stories, each about people of its own, then questions of the form "question: where is bado? answer:".

    A sample holds as many documents as leave room for the questions in `length` tokens, in the layout of RULER's
    questions about documents (Hsieh et al. 2024) without its instruction. Splits share no story.

    Attributes:
        length: tokens of a sample. questions: asked one behind the other, of different people. people, moves: of a
            document: each of its people goes so often to another place.
        num_names: names that have a token; no name stands in two documents of a sample. known_names: documents take
            theirs from the first so many of them; None: from all.
        wording: 4 is the form above. Below, so many words stand between a person and a place ("bado kitchen .", "bado
            the kitchen .", ...), and as many behind the person of a question ("question : bado", ...).
    """

    length: int = 128
    questions: int = 4
    people: int = 4
    moves: int = 1
    num_names: int = 1500
    # Not in the representation, which samples are drawn by: a seed asks about the same stories in any wording.
    known_names: int | None = field(default=None, repr=False)
    wording: int = field(default=FULL_WORDING, repr=False)

    summary = "questions about one of many documents: stories of bAbI's first kind, each about its own people"
    source = "Memory Mosaics at scale (v2), section 5.2; RULER, Hsieh et al. 2024"
    main_score = "exact_match"

    def __post_init__(self) -> None:
        for name in ("questions", "people", "moves"):
            self._require(name, getattr(self, name) >= 1, "be at least 1")
        self._require("wording", 0 <= self.wording <= FULL_WORDING, f"lie in [0, {FULL_WORDING}]")
        self._require("length", self.num_documents >= 1, f"be at least {self.length_of(1)}")
        people, advice = self.num_documents * self.people, "Ask fewer, or use longer samples."
        needed = f"be at least the questions ({self.questions})"
        expect(people >= self.questions, type(self).__name__, "people in all documents", needed, people, advice)
        self._require("num_names", people <= self.num_names <= NUM_NAMES, f"lie in [{people}, {NUM_NAMES}]")
        is_known = people <= self._num_known <= self.num_names
        self._require("known_names", is_known, f"lie in [{people}, {self.num_names}]")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """All words; a word's place is its token, and 0 is padding."""
        return tuple(_tokens(self.num_names))

    @property
    def vocab_size(self) -> int:
        """Words there are."""
        return len(_tokens(self.num_names))

    @property
    def num_documents(self) -> int:
        """As many as fit beside the questions."""
        return (self.length - self.length_of(0)) // self._document_length

    def sample(self, count: int, seed: int, split: str = "train") -> TokenExamples:
        """`count` samples in a row each; documents, then questions with their answers, then padding."""
        expect_split(self, split)
        random = Random(f"{self} {seed} {split}")
        samples = [self._sample(random, split) for _ in range(count)]
        tokens, labels = torch.zeros(count, self.length, dtype=torch.long), torch.full((count, self.length), IGNORED)
        for row, sample in enumerate(samples):
            words, answers = self._words(sample)
            ids = torch.tensor([_tokens(self.num_names)[word] for word in words])
            tokens[row, : len(ids)] = ids
            labels[row, answers] = ids[answers]
        return TokenExamples(tokens, labels, tuple(samples))

    def scores(self, predictions: Tensor, examples: TokenExamples) -> dict[str, Tensor]:
        """`exact_match` (B,): the share of questions whose answer is the likeliest word."""
        is_answer = (examples.labels != IGNORED)[:, 1:]
        right = (predictions[:, :-1].argmax(-1).cpu() == examples.tokens[:, 1:]) & is_answer
        return {"exact_match": right.sum(1) / is_answer.sum(1)}

    def _sample(self, random: Random, split: str) -> Sample:
        drawn = random.sample(names()[: self._num_known], self.num_documents * self.people)
        documents: list[StoryDocument] = []
        while len(documents) < self.num_documents:
            first = len(documents) * self.people
            document = write_document(tuple(drawn[first : first + self.people]), self.moves, random)
            if Random(" ".join(document.facts)).randrange(10) in SPLIT_TENTHS[split]:
                documents.append(document)
        everybody = [pair for document in documents for pair in document.places]
        return Sample(tuple(documents), tuple(random.sample(everybody, self.questions)))

    def _words(self, sample: Sample) -> tuple[list[str], list[int]]:
        """The words of a sample and the places of its answers."""
        words = [word for document in sample.documents for word in self._document_words(document.facts)]
        answers = []
        for person, place in sample.questions:
            words += self._question(person)
            answers.append(len(words))
            words.append(place)
        return words, answers

    def _document_words(self, facts: tuple[str, ...]) -> list[str]:
        words = [DOCUMENT, ":"]
        for person, *move, place in map(str.split, facts):
            words += [person, *(move if self.wording == FULL_WORDING else GAPS[self.wording]), place, "."]
        return words

    def _question(self, person: str) -> list[str]:
        return QUESTION_FORMS[min(self.wording, FULL_WORDING - 1)].format(person).split()

    @property
    def _num_known(self) -> int:
        return self.num_names if self.known_names is None else self.known_names

    @property
    def _document_length(self) -> int:
        empty, fact = (len(self._document_words(("x went to the garden",) * count)) for count in (0, 1))
        return empty + self.people * self.moves * (fact - empty)

    def length_of(self, documents: int) -> int:
        """Tokens of a sample of so many documents."""
        return self.questions * (len(self._question("x")) + 1) + documents * self._document_length


@lru_cache(maxsize=4)
def _tokens(num_names: int) -> dict[str, int]:
    words = [PAD, *QUESTION_FORMS[-1].format("?").split(), DOCUMENT, ":", "the", "."]
    words += [*" ".join(MOVES).split(), *PLACES, *names()[:num_names]]
    return {word: token for token, word in enumerate(dict.fromkeys(words))}


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """All names there are: two syllables of a consonant and a vowel each, in an order of chance."""
    syllables = ["".join(pair) for pair in product(_CONSONANTS, _VOWELS)]
    written = ["".join(pair) for pair in product(syllables, repeat=2)]
    Random("names").shuffle(written)
    return tuple(written)


def write_document(people: tuple[str, ...], moves: int, random: Random) -> StoryDocument:
    """A story in which each of `people` goes `moves` times to another place, in an order of chance."""
    order = [person for person in people for _ in range(moves)]
    random.shuffle(order)
    places: dict[str, str] = {}
    facts = []
    for person in order:
        places[person] = random.choice([place for place in PLACES if place != places.get(person)])
        facts.append(f"{person} {random.choice(MOVES)} the {places[person]}")
    return StoryDocument(tuple(facts), tuple((person, places[person]) for person in people))
