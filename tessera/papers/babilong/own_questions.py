"""Questions of your own: texts with questions and answers from files, hidden in books as BABILong's facts are."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from random import Random
from typing import NamedTuple

from torch import Tensor

from tessera.base.errors import expect
from tessera.data.sources import JSON_ENDINGS, contents_checksum, text_files
from tessera.papers.babilong.benchmark import read_samples, words_of
from tessera.papers.babilong.sample import has_room
from tessera.papers.babilong.stories import Question, Story
from tessera.papers.babilong.task import BABILong
from tessera.papers.babilong.vocabulary import SPECIAL_TOKENS, Words
from tessera.tasks.question_answering import NOT_IN_TEXT
from tessera.tasks.task import SPLIT_TENTHS, SPLITS, TASKS, TokenExamples

EXAMPLE = Path(__file__).parent / "example_questions.jsonl"
FIELDS = ("text", "question", "answer")
OF_BABI = ("kind", "stories", "also_asked", "fewest_facts", "near_facts", "half_facts", "cut_facts")
FEWEST, SHOWN = 10, 3


@TASKS.register("questions")
@dataclass(frozen=True)
class OwnQuestions(BABILong):
    """A text of `file` between sentences of books, then `question <generate> answer <end>`.

    Answers may have several words, and what an answer of "not in this text" says is learned too. Of the texts eight in
    ten are for training, one for validation and one for tests, each with all its questions.

    Attributes:
        file: JSON lines, each an object with the texts `text`, `question` and `answer`; a folder of such files or a
            glob. "example" comes with the library: who left what where.
        absent: as in BABILong; questions that other texts have are those that a text does not answer. 0 where it may.
        noise, test_noise, facts_share, split_facts, sentence_ends, vocab_size, tokenizer, from_memory: as in BABILong.
            The other settings are of its grammar, and refused.
    Raises:
        TesseraError: files that cannot be read, fewer than ten texts, two answers to one question of a text, a
            vocabulary without some of their words.
    """

    facts_share: float = 0.9
    absent: float = 0.1
    file: str = "example"

    summary = "questions of your own about texts of your own (JSON lines), hidden in books"
    source = "BABILong, Kuratov et al. 2024, with other facts"

    def __post_init__(self) -> None:
        for name in OF_BABI:
            self._require(name, getattr(self, name) == BABILong.__dataclass_fields__[name].default, "be left out")
        self._require("facts_share", 0 < self.facts_share < 1, "lie in (0, 1)")
        self._require("absent", 0 <= self.absent < 1, "lie in [0, 1)")
        needed = len(SPECIAL_TOKENS) + len(set(words_of(self.words.first)))
        is_large = self.tokenizer is not None or self.vocab_size >= needed
        self._require("vocab_size", is_large, f"be at least {needed}, for the words of {self.file}")

    @property
    def words(self) -> Words:
        """What decides the vocabulary."""
        return Words(self.noise, self.vocab_size, self.tokenizer, self._own.everything, self.contents)

    @cached_property
    def contents(self) -> str:
        """A checksum of the files that samples are made of."""
        return contents_checksum([*text_files(self.noise), *text_files(self.test_noise or []), *self._files])

    @property
    def labels(self) -> tuple[str, ...]:
        """Every answer of the files."""
        answers = {question.answer for question in self._questions}
        return tuple(sorted(answers | ({NOT_IN_TEXT} if self.absent else set())))

    @cached_property
    def reserved(self) -> int:  # type: ignore[override]
        """Tokens that the longest question takes with its answer."""
        return max(
            len(self.question_tokens(question.text)) + len(self.answer_tokens(question.answer))
            for question in self._questions
        )

    @property
    def understands(self) -> str:
        """See `QuestionTask`."""
        examples = " or ".join(f'"{text}"' for text in self._own.asked["train"][:SHOWN])
        text = next(iter(self._own.questions))
        return f'questions such as {examples}, about texts such as "{text[:200]}"; of other words it knows nothing'

    def sources(self, examples: TokenExamples) -> list[int]:
        """See `Task`: the text of the file, or where there is none the question."""
        return [hash((*sample.story.facts, sample.question.text)[0]) for sample in examples.details]

    def scores(self, predictions: Tensor, examples: TokenExamples) -> dict[str, Tensor]:
        """See `BABILong`; what is exact is right by the benchmark's rule, too, which knows no marks in answers."""
        scores = super().scores(predictions, examples)
        return scores | {"published_match": scores["published_match"].maximum(scores["exact_match"])}

    def is_known(self, question: str) -> bool:
        """See `QuestionTask`: whether every word stands in a question of the files."""
        return set(words_of(" ".join(known.text for known in self._questions))).issuperset(words_of(question))

    def is_stated(self, sentence: str) -> bool:
        """See `QuestionTask`: whether every word stands in a text of the files."""
        return set(words_of(" ".join(self._own.questions))).issuperset(words_of(sentence))

    @cached_property
    def _own(self) -> "_OwnTexts":
        return _read(self.file, tuple(self._files), contents_checksum(self._files))

    @property
    def _files(self) -> list[Path]:
        return [EXAMPLE] if self.file == "example" else text_files(self.file, JSON_ENDINGS)

    @property
    def _questions(self) -> list[Question]:
        return [question for questions in self._own.questions.values() for question in questions]

    def _random(self, *of: int | str) -> Random:
        return super()._random(self._own.everything, *of)

    def _expect_room(self, length: int) -> None:
        for split in SPLITS:
            shortest = min((self._tokens(text) for text in self._own.splits[split]), key=len)
            hint = f"The shortest for {split} takes {len(shortest)}; facts_share allows {self.facts_share} of a sample."
            has_text = has_room([shortest], length, self.facts_share)
            expect(has_text, type(self).__name__, "length", "have room for a text of the file", length, hint)

    def _story(self, random: Random, split: str, length: int) -> Story:
        text = random.choice(self._own.splits[split])
        return Story((text,), self._own.questions[text])

    def _questions_about(self, facts: Sequence[str], split: str) -> list[Question]:
        return [question for text in facts for question in self._own.questions[text]]

    def _unanswered(self, facts: Sequence[str], split: str) -> tuple[Question, ...]:
        own = {question.text for question in self._questions_about(facts, split)}
        return tuple(Question(text, NOT_IN_TEXT) for text in self._own.asked[split] if text not in own)


class _OwnTexts(NamedTuple):
    """What files hold: questions about each text, texts and questions of each split, and everything as one text."""

    questions: dict[str, tuple[Question, ...]]
    splits: dict[str, list[str]]
    asked: dict[str, tuple[str, ...]]
    everything: str


@lru_cache(maxsize=8)
def _read(name: str, files: tuple[Path, ...], contents: str) -> _OwnTexts:
    """`files`, read again when the checksum of their `contents` is another."""
    questions: dict[str, list[Question]] = {}
    answers: dict[tuple[str, str], str] = {}
    texts: dict[str, str] = {}  # those of the same words, in one spelling: others would be the same tokens
    for row in chain.from_iterable(read_samples(path, FIELDS) for path in files):
        answer = row.target.strip()
        answer = NOT_IN_TEXT if answer.lower().rstrip(".") == NOT_IN_TEXT else answer
        question, text = row.question.strip(), " ".join(row.input.split())
        text = texts.setdefault(" ".join(words_of(text)), text)
        key = (text, " ".join(words_of(question)))
        is_new, known = key not in answers, answers.setdefault(key, answer)
        needed, got = f"have one answer to {question[:80]!r} of one text", f"{known[:80]!r} and {answer[:80]!r}"
        expect(known.lower() == answer.lower(), "questions", name, needed, got, "Leave one of them out.")
        if is_new:  # a question that stands twice would be asked twice of one context
            questions.setdefault(text, []).append(Question(question, answer))
    expect(len(questions) >= FEWEST, "questions", name, f"hold at least {FEWEST} texts", len(questions))
    shuffled = sorted(questions, key=lambda text: Random(text).random())
    tenth_of = {text: 10 * rank // len(shuffled) for rank, text in enumerate(shuffled)}
    splits = {split: [text for text in questions if tenth_of[text] in SPLIT_TENTHS[split]] for split in SPLITS}
    questions_of_split = {
        split: tuple(dict.fromkeys(question.text for text in splits[split] for question in questions[text]))
        for split in SPLITS
    }
    rows = [f"{text} {question.text} {question.answer}" for text, row in questions.items() for question in row]
    return _OwnTexts({text: tuple(row) for text, row in questions.items()}, splits, questions_of_split, "\n".join(rows))
