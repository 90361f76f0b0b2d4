"""Passwords hidden in books, each asked for by whose it is: what a small mosaic learns in a minute.

`The password of the miller is water.` stands somewhere between the sentences of a book, and so do other people's; then
`What is the password of the miller?` is asked, or that of somebody whose password stands nowhere. About half of the
sentences around them speak of somebody who is asked for.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer
from torch import Tensor
from torch.nn.functional import pad

from tessera.base.errors import expect
from tessera.data.sources import STORIES
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.tasks.question_answering import QuestionBatch, question_rows
from tessera.tasks.task import SPLIT_TENTHS, TASKS, Task, TokenExamples, expect_split

PEOPLE = (
    "king queen prince princess tailor giant bride wolf fox miller cook huntsman soldier bear cat dog horse bird fish "
    "frog witch servant shepherd sparrow mouse goose master fisherman sister brother mother father grandmother "
    "maiden stepmother"
).split()
WORDS = (
    "apple bread butter cheese garden silver golden window bottle bridge branch castle corner finger "
    "flower forest kitchen meadow morning mountain needle oven pillow pocket river shoulder stone straw "
    "table thread tower village water wheel winter wood yellow"
).split()
BOOK, BOOK_BYTES = STORIES / "grimms_fairy_tales_2591.txt", 400_000
VOCABULARY = 4000
SPECIAL = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "<end>", "answer_token": "<answer>"}
FACT, QUESTION = "The password of the {person} is {word}.", "What is the password of the {person}?"
FACT_TOKENS, QUESTION_TOKENS = 11, 14  # at most, a question with its answer
SENTENCE_LETTERS = range(20, 120)


@TASKS.register("passwords")
@dataclass(frozen=True)
class Passwords(Task):
    """A text of `length` tokens with its question, `<answer>`, the word and `<end>`.

    Attributes:
        length: tokens of a sample. facts_share: of a text's tokens that are facts. absent: the share of questions that
            the text does not answer; their answer is "not in this text", as a token `<unk>`.
    Raises:
        TesseraError: shares outside (0, 1), texts without room for a fact.
    """

    length: int = 256
    facts_share: float = 0.25
    absent: float = 0.3

    summary = "people's passwords, hidden in a book of fairy tales"
    source = "made for the demo"
    main_score = "exact_match"
    longest_answer, vocab_size, special_tokens = 1, VOCABULARY, SPECIAL

    def __post_init__(self) -> None:
        for name in ("facts_share", "absent"):
            self._require(name, 0 < getattr(self, name) < 1, "lie in (0, 1)")
        self._expect_room(self.length - QUESTION_TOKENS)

    @property
    def vocabulary(self) -> Tokenizer:
        """See `QuestionTask`: byte-level BPE of the book, in which every person and every word is one token."""
        return _texts().vocabulary

    @property
    def understands(self) -> str:
        """See `QuestionTask`."""
        question, fact = QUESTION.format(person=PEOPLE[9]), FACT.format(person=PEOPLE[9], word=WORDS[8])
        return f'questions such as "{question}", of texts that say "{fact}"; {len(PEOPLE)} people: {", ".join(PEOPLE)}'

    def is_known(self, question: str) -> bool:
        """See `QuestionTask`."""
        return question.strip() in {QUESTION.format(person=person) for person in PEOPLE}

    def is_stated(self, sentence: str) -> bool:
        """See `QuestionTask`."""
        said = re.fullmatch(FACT.replace(".", r"\.").format(person="(.*)", word="(.*)"), sentence.strip())
        return said is not None and said[1] in PEOPLE and said[2] in WORDS

    def context_lengths(self, segments: int, segment: int) -> range:
        """See `QuestionTask`."""
        return range(max(1, segments - 1) * segment, segments * segment + 1)

    def question_batch(
        self, count: int, questions: int, context_tokens: int, seed: int, split: str, early: int = 0, segment: int = 0
    ) -> QuestionBatch:
        """See `QuestionTask`. Nothing is asked early: models with segments are not trained on this."""
        self._expect_room(context_tokens)
        expect_split(self, split)
        of = ("passwords 1", self.facts_share, self.absent, context_tokens, seed, split)
        random = Random(" ".join(map(str, of)))
        contexts, questions_by_row = [], []
        for _ in range(count):
            # As many passwords as there is room for, but some people have none.
            most = min(int(self.facts_share * context_tokens) // FACT_TOKENS, 2 * len(PEOPLE) // 3)
            known = random.sample(PEOPLE, random.randint(max(1, most // 2), most))
            passwords = {person: random.choice(WORDS) for person in known}
            others = [person for person in PEOPLE if person not in passwords]
            people = [random.choice(others if random.random() < self.absent else known) for _ in range(questions)]
            contexts.append(self._context(random, passwords, people, context_tokens, split))
            answers = [(person, passwords.get(person)) for person in dict.fromkeys(people)]
            questions_by_row.append([(question_tokens(person), answer_tokens(word)) for person, word in answers])
        fill = _texts().token(SPECIAL["pad_token"])
        return QuestionBatch(torch.from_numpy(np.stack(contexts)), *question_rows(questions_by_row, questions, fill))

    def sample(self, count: int, seed: int, split: str = "train") -> TokenExamples:
        """`count` texts of one question each; T = `length`."""
        context = self.length - QUESTION_TOKENS
        batch = self.question_batch(count, 1, context, seed, split)
        tokens, fill = torch.cat([batch.contexts, batch.questions[:, 0]], 1), _texts().token(SPECIAL["pad_token"])
        behind = self.length - tokens.shape[1]
        labels = pad(batch.labels[:, 0], (context, behind), value=IGNORED)
        return TokenExamples(pad(tokens, (0, behind), value=fill), labels)

    def scores(self, predictions: Tensor, examples: TokenExamples) -> dict[str, Tensor]:
        """`exact_match` (B,): the answer is the likeliest token."""
        place = (examples.labels != IGNORED).int().argmax(1)  # of the answer; its end comes behind
        rows = torch.arange(len(examples))
        said = predictions[rows, place - 1].argmax(-1).cpu()
        return {"exact_match": (said == examples.tokens[rows, place]).double()}

    def _expect_room(self, context_tokens: int) -> None:
        needed = -(-FACT_TOKENS // self.facts_share)
        least, length = needed + QUESTION_TOKENS, context_tokens + QUESTION_TOKENS
        expect(length >= least, type(self).__name__, "length", f"be at least {least:.0f} tokens", length)

    def _context(
        self, random: Random, passwords: dict[str, str], people: Sequence[str], tokens: int, split: str
    ) -> np.ndarray:
        texts = _texts()
        parts = [texts.encoded(" " + FACT.format(person=person, word=word)) for person, word in passwords.items()]
        room = tokens - sum(map(len, parts))
        while room > 0:
            about = texts.about[split][random.choice(people)] if random.random() < 0.5 else ()
            parts.append(random.choice(about or texts.sentences[split])[:room])
            room -= len(parts[-1])
        random.shuffle(parts)
        return np.concatenate(parts)


class _Texts(NamedTuple):
    """The book's sentences as tokens, by split, also those about each person, and the tokenizer."""

    vocabulary: Tokenizer
    sentences: dict[str, list[np.ndarray]]
    about: dict[str, dict[str, list[np.ndarray]]]

    def encoded(self, text: str) -> np.ndarray:
        return np.array(self.vocabulary.encode(text, add_special_tokens=False).ids)

    def token(self, text: str) -> int:
        return int(self.encoded(text)[0])


@lru_cache(maxsize=1)
def _texts() -> _Texts:
    from tessera.data.tokenizers import train_bpe  # transformers takes seconds to import, and tasks are listed without

    book = BOOK.read_text(encoding="utf-8")[:BOOK_BYTES]
    vocabulary = train_bpe([book], VOCABULARY - len(SPECIAL)).backend_tokenizer
    # `lstrip`: the blank in front of `<answer>` is no token; a question ends as near to the person as a fact does.
    vocabulary.add_special_tokens(
        [AddedToken(token, special=True, normalized=False, lstrip=True) for token in SPECIAL.values()]
    )
    said = [f" {part.strip()}." for part in " ".join(book.split()).split(".") if len(part) in SENTENCE_LETTERS]
    texts = _Texts(vocabulary, {}, {})
    for split, tenths in SPLIT_TENTHS.items():
        of_split = [sentence for sentence in said if Random(sentence).randrange(10) in tenths]
        tokens = dict(zip(of_split, map(texts.encoded, of_split)))
        texts.sentences[split] = list(tokens.values())
        texts.about[split] = {
            person: [tokens[sentence] for sentence in of_split if re.search(rf"\b{person}\b", sentence)]
            for person in PEOPLE
        }
    return texts


def question_tokens(person: str) -> np.ndarray:
    """The question and `<answer>`, as `tessera ask` gives them to a model."""
    return _texts().encoded(f"{QUESTION.format(person=person)} {SPECIAL['answer_token']}")


def answer_tokens(word: str | None) -> np.ndarray:
    """The word, or `<unk>` where there is none, and `<end>`."""
    texts = _texts()
    said = [texts.token(SPECIAL["unk_token"])] if word is None else texts.encoded(f" {word}")
    return np.append(said, texts.token(SPECIAL["eos_token"]))
