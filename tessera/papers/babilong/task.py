"""BABILong: answer a question about facts that are hidden in books."""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from tessera.base.errors import expect
from tessera.data.sources import content, contents_checksum, text_files
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.papers.babilong import stories as babi
from tessera.papers.babilong.benchmark import ASKED, published_match
from tessera.papers.babilong.sample import (
    RESERVED,
    Book,
    HalfFacts,
    Lookalikes,
    Sample,
    Source,
    books_of,
    has_room,
    hide,
)
from tessera.papers.babilong.vocabulary import (
    END,
    GENERATE,
    NAMES,
    PAD,
    STORY_WORDS,
    UNKNOWN,
    Words,
    decode,
    pretrained,
    sentence_tokens,
    token_of,
    vocabulary_of,
)
from tessera.tasks.question_answering import NOT_IN_TEXT, QuestionBatch, question_rows
from tessera.tasks.task import SPLIT_TENTHS, TASKS, Task, TokenExamples, expect_split


@TASKS.register("babilong")
@dataclass(frozen=True)
class BABILong(Task):
    """A story's facts between sentences of books, then `question <generate> answer <end>` (Kuratov et al. 2024).

    Attributes:
        kind: "qa1" (where is somebody), "qa2" (where is a thing), "qa3" (where was it before), "qa4" (what lies beside
            what), "qa5" (who gave what to whom).
        length: tokens of a sample, questions and answer included.
        noise: the books: "stories" (bundled), a file, a folder, a glob, or several of them. Splits share no book.
        test_noise: the same of the test split alone, such as "test_books" (bundled), with other files than `noise`, to
            which the vocabulary owes nothing; None: some of `noise`.
        stories: None, to write them by a grammar, or a folder of bAbI's files `qa1_*_train.txt`, `qa1_*_test.txt`.
            Splits share no story: the share of a generated one follows from its facts; of the files' training stories
            a ninth is for validation.
        vocab_size: words with a token of their own.
        tokenizer: somebody's, in place of words: a folder, a tokenizer.json file, or a name on the hub. Facts, noise
            and answers are its tokens then, and samples end with `Question: ... Answer: ...` and its `eos_token`.
        facts_share: stories whose facts take more than this share of a sample are left out (published: a fifth).
            Samples of one segment, where a curriculum begins, need more.
        lookalikes: share of the noise's words that words of the stories replace. For training: books seldom look like
            facts, too seldom to learn the difference from.
        near_facts: share of the noise's words at which a sentence begins that is a fact but for one name, in whose
            place it has a word of the noise ("the prince went to the garden"). For training, too.
        split_facts: share of the facts that move to the nearest place between sentences where the border of two
            segments cuts them in two, as far as there is one behind the fact before. Few are cut by chance (of QA1's
            in segments of 64 tokens one in thirteen), too few to learn to write both halves. None: no fact is cut,
            as where segments end at sentences. For training alone, by `question_batch` with a `segment`.
        sentence_ends: marks between spaces, such as ". ! ?", behind which a model of segments ends these once it is
            trained (`segment_end_ids`); "": its segments stay equally long. In training they are.
        half_facts: share of the segments that begin with the end of a fact that has no beginning, such as "to the
            garden", as those of a book may; none beside a fact. For training alone, like `split_facts`.
        cut_facts: the same of those that end so, with up to two words of the noise behind it.
        also_asked: other kinds whose questions the same facts answer; training asks them too. A thing is where its
            holder is: "qa1" beside "qa2" teaches the first half of that.
        fewest_facts: of a written story; None: as in bAbI, 2, 3, 3, 2 and 3 by kind. Fewer are easier to learn from.
        from_memory: contexts end with a segment, and questions come in the next one, so that they can be answered from
            memory alone. Otherwise question and answer fit into the last segment, in validations as published; contexts
            of several segments end anywhere in it in training, which teaches to answer from memory alone too.
        absent: share of the contexts of `question_batch` that hold no fact, and in the others of the questions that the
            facts do not answer, as far as there are such: "not in this text" (`unk_token`).
    Raises:
        TesseraError: an unknown kind, a sample too short for a story, missing files.
    """

    kind: str = "qa1"
    length: int = 256
    noise: Source = "stories"
    test_noise: Source | None = None
    stories: str | None = None
    vocab_size: int = 2000
    tokenizer: str | None = None
    facts_share: float = 0.2
    lookalikes: float = 0.0
    near_facts: float = 0.0
    split_facts: float | None = 0.0
    sentence_ends: str = ""
    half_facts: float = 0.0
    cut_facts: float = 0.0
    also_asked: tuple[str, ...] = ()
    fewest_facts: int | None = None
    from_memory: bool = False
    absent: float = 0.0

    summary = "a question about facts that lie anywhere between the sentences of a book (BABILong, QA1 to QA5)"
    source = "Associative Recurrent Memory Transformer, section 4; BABILong, Kuratov et al. 2024"
    main_score = "exact_match"
    reserved = RESERVED
    question_format = ASKED  # in the tokens of a `tokenizer`, which has no `answer_token`

    def __post_init__(self) -> None:
        where = type(self).__name__
        kinds = ", ".join(babi.LENGTHS)
        self._require("kind", self.kind in babi.LENGTHS, f"be one of {kinds}")
        others = set(babi.LENGTHS) - {self.kind}
        self._require("also_asked", others.issuperset(self.also_asked), f"be other kinds of {kinds}")
        self._require("facts_share", 0 < self.facts_share < 1, "lie in (0, 1)")
        for name in ("lookalikes", "near_facts", "absent"):
            self._require(name, 0 <= getattr(self, name) < 1, "lie in [0, 1)")
        for name in ("split_facts", "half_facts", "cut_facts"):
            is_share = (name == "split_facts" and self.split_facts is None) or 0 <= getattr(self, name) <= 1
            self._require(name, is_share, "lie in [0, 1]")
        least, most = babi.FEWEST[self.kind], babi.LENGTHS[self.kind][1]
        is_possible = self.fewest_facts is None or least <= self.fewest_facts <= most
        self._require("fewest_facts", is_possible, f"be from {least} to {most} for {self.kind}")
        self._expect_room(self.length)
        if self.test_noise is not None:
            known = {key for file in text_files(self.noise) for key in (_book_name(file), content(file))}
            both = [file for file in text_files(self.test_noise) if known & {_book_name(file), content(file)}]
            expect(not both, where, "test_noise", "be other books than noise", ", ".join(file.name for file in both))
        if self.tokenizer is not None:
            longest = max(len(self.question_tokens(text)) for text in babi.examples_of(self.kind))
            longest += max(len(self.answer_tokens(word)) for word in self.labels)
            room = f"take at most {RESERVED} tokens for a question and its answer"
            expect(longest <= RESERVED, where, "tokenizer", room, f"{longest} by {self.tokenizer}")

    def books(self, split: str) -> tuple[Book, ...]:
        """The noise of a split."""
        return books_of(self.words, split, self.test_noise)

    @cached_property
    def contents(self) -> str:
        """A checksum of the files that samples are made of."""
        sources = [self.noise, self.test_noise, self.stories and str(Path(self.stories) / f"{self.kind}_*.txt")]
        return contents_checksum(file for source in sources if source is not None for file in text_files(source))

    @property
    def words(self) -> Words:
        """What decides the vocabulary."""
        return Words(self.noise, self.vocab_size, self.tokenizer, contents=self.contents)

    @property
    def vocabulary(self) -> Tokenizer:
        """Words to tokens, or the `tokenizer`."""
        return vocabulary_of(self.words)

    @property
    def special_tokens(self) -> dict[str, str]:
        """See `QuestionTask`."""
        if self.tokenizer is not None:
            known = pretrained(self.tokenizer)
            return {"eos_token": known.eos_token, "pad_token": known.pad_token or known.eos_token}
        return {"unk_token": UNKNOWN, "pad_token": PAD, "eos_token": END, "answer_token": GENERATE}

    @property
    def understands(self) -> str:
        """See `QuestionTask`."""
        return babi.understood(self.kind, self.labels)

    @property
    def longest_answer(self) -> int:
        """See `QuestionTask`."""
        return max(len(self._tokens(word)) for word in self.labels)

    def is_known(self, question: str) -> bool:
        """See `QuestionTask`."""
        return any(babi.is_like(question, babi.examples_of(kind)) for kind in (self.kind, *self.also_asked))

    def is_stated(self, sentence: str) -> bool:
        """See `QuestionTask`."""
        return babi.is_like(sentence, babi.facts_of(self.kind))

    def context_lengths(self, segments: int, segment: int) -> range:
        """See `QuestionTask` and `from_memory`."""
        end = segments * segment
        if self.from_memory:
            return range(end, end + 1)
        last = end - self.reserved
        return range(end - segment if segments > 1 else last, last + 1)

    @property
    def labels(self) -> tuple[str, ...]:
        """The answers there are."""
        return (*babi.labels(self.kind), *([NOT_IN_TEXT] if self.absent else []))

    def samples(self, seed: int, split: str = "train") -> Iterator[Sample]:
        """Samples without end; the same seed and split give the same ones."""
        expect_split(self, split)
        random, books = self._random(seed, split), self.books(split)
        while True:
            yield self._sample(random, books, split, self.length - self.reserved + RESERVED)

    def question_batch(
        self, count: int, questions: int, context_tokens: int, seed: int, split: str, early: int = 0, segment: int = 0
    ) -> QuestionBatch:
        """See `QuestionTask`; the questions of a context differ, and come in random order."""
        self._expect_room(context_tokens + RESERVED)
        random, books = self._random(context_tokens, seed, split), self.books(split)
        contexts, sources, questions_by_row, early_by_row = [], [], [], []
        borders = range(segment, context_tokens + 1, segment) if early else ()
        halves = None
        if segment and (self.half_facts or self.cut_facts):
            halves = HalfFacts(segment, self.half_facts, self.cut_facts, self.possible_facts(), self._names())
        for _ in range(count):
            sample = self._sample(random, books, split, context_tokens + RESERVED, segment)
            tokens = sample.context.tokens()
            sources.append(books.index(sample.context.spans[0].book))
            contexts.append(tokens if halves is None else halves.into(tokens, sample.context.is_fact(), random))
            possible: Sequence[babi.Question] = sample.story.questions
            if self.also_asked and sample.story.facts:
                possible = self._questions_about(sample.story.facts, split)
            questions_by_row.append(self._asked(possible, sample.story.facts, questions, random, split))
            ends = sample.context.fact_ends() if borders else []
            for border in borders:
                facts = sample.story.facts[: bisect_right(ends, border)]
                early_by_row.append(self._asked(self._questions_about(facts, split), facts, early, random, split))
        stacked = torch.from_numpy(np.stack(contexts).astype(np.int64))
        batch = QuestionBatch(stacked, *self._in_rows(questions_by_row, questions), sources=torch.tensor(sources))
        if not borders:
            return batch
        shape = (count, len(borders), early, -1)
        early_questions, early_labels = (rows.view(shape) for rows in self._in_rows(early_by_row, early))
        return replace(batch, early_questions=early_questions, early_labels=early_labels)

    def sample(self, count: int, seed: int, split: str = "train") -> TokenExamples:
        """`count` samples in a row each: context, question, `<generate>`, answer, `<end>`, padding; T = `length`."""
        samples = tuple(islice(self.samples(seed, split), count))
        tokens = torch.full((count, self.length), self._special("pad_token"))
        target = torch.full((count, self.length), IGNORED)
        for row, sample in enumerate(samples):
            ids = np.concatenate([sample.context.tokens(), self.question_tokens(sample.question.text)])
            row_tokens = torch.from_numpy(np.append(ids, self.answer_tokens(sample.question.answer)).astype(np.int64))
            tokens[row, : len(row_tokens)] = row_tokens
            target[row, len(ids) : len(row_tokens)] = row_tokens[len(ids) :]
        return TokenExamples(tokens, target, samples)

    def sources(self, examples: TokenExamples) -> list[int]:
        """See `Task`: the book that a sample begins in."""
        return [hash(sample.context.spans[0].book.name) for sample in examples.details]

    def question_tokens(self, question: str) -> np.ndarray:
        """The question and `<generate>`: what comes behind the context."""
        if self.tokenizer is not None:
            return sentence_tokens(self.words, ASKED.format(question=question))
        return np.append(self._tokens(question), np.int32(self._special("answer_token")))

    def answer_tokens(self, word: str) -> np.ndarray:
        """The answer and `<end>`: what is to be generated."""
        return np.append(self._tokens(word), np.int32(self._special("eos_token")))

    def scores(self, predictions: Tensor, examples: TokenExamples) -> dict[str, Tensor]:
        """`exact_match` (B,): the answer is the likeliest; `published_match`: the public benchmark's rule."""
        exact, published = [], []
        for row, sample in enumerate(examples.details):
            places = (examples.labels[row] != IGNORED).nonzero().flatten()[:-1]  # of the answer, without the end
            said = predictions[row, places - 1].argmax(-1).cpu()
            exact.append(bool((said == examples.tokens[row, places]).all()))
            text, question = decode(self.vocabulary, said).replace(UNKNOWN, NOT_IN_TEXT), sample.question
            published.append(published_match(text, question.text, question.answer, self.labels))
        return {"exact_match": torch.tensor(exact).double(), "published_match": torch.tensor(published).double()}

    def _random(self, *of: int | str) -> Random:
        """What samples are drawn by: version 1, a text of the settings that decide stories and noise, as it stays.

        What else changes in a context (`lookalikes`, ...) or is asked of it leaves these as they are.
        """
        names = ("kind", "length", "noise", "stories", "vocab_size", "facts_share")
        text = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
        return Random(" ".join(map(str, (f"BABILong({text})", *of))))

    def _sample(self, random: Random, books: Sequence[Book], split: str, length: int, segment: int = 0) -> Sample:
        is_empty = bool(self.absent) and random.random() < self.absent
        while True:
            story = babi.Story((), self._unanswered((), split)) if is_empty else self._story(random, split, length)
            facts = [self._tokens(fact) for fact in story.facts]
            if has_room(facts, length, self.facts_share):
                lookalikes = None
                if self.lookalikes or self.near_facts:
                    words, seed = np.unique(self._tokens(STORY_WORDS)), random.getrandbits(32)
                    near = self.possible_facts() if self.near_facts else ()
                    lookalikes = Lookalikes(self.lookalikes, words, self.near_facts, near, self._names(), seed)
                context = hide(facts, books, length, random, lookalikes, segment, self.split_facts)
                return Sample(context, story, random.choice(story.questions))

    def _questions_about(self, facts: Sequence[str], split: str) -> list[babi.Question]:
        kinds = (self.kind, *(self.also_asked if split == "train" else ()))
        return [question for kind in kinds for question in babi.questions_after(kind, facts)]

    def _unanswered(self, facts: Sequence[str], split: str) -> tuple[babi.Question, ...]:
        """Questions that these facts do not answer, and others may."""
        answered = {question.text for question in babi.questions_after(self.kind, facts)}
        others = (text for text in babi.examples_of(self.kind) if text not in answered)
        return tuple(babi.Question(text, NOT_IN_TEXT) for text in others)

    def _asked(
        self, answered: Sequence[babi.Question], facts: Sequence[str], count: int, random: Random, split: str
    ) -> list[babi.Question]:
        """At most `count` of the questions that `facts` answer; a share `absent` gives way to others, if there are."""
        chosen = random.sample(answered, min(count, len(answered)))
        if not self.absent or not (others := self._unanswered(facts, split)):
            return chosen
        if not chosen:
            chosen = random.sample(others, min(count, len(others)))
            return [question for question in chosen if random.random() < self.absent]
        return [random.choice(others) if random.random() < self.absent else question for question in chosen]

    def possible_facts(self) -> tuple[np.ndarray, ...]:
        """Tokens of every fact that stories of this kind may have."""
        return tuple(map(self._tokens, babi.facts_of(self.kind)))

    def _names(self) -> np.ndarray:
        return np.unique(self._tokens(NAMES))

    def _expect_room(self, length: int) -> None:
        """Raise unless the shortest stories fit into a sample of `length` tokens."""
        fewest = babi.LENGTHS[self.kind][0] if self.fewest_facts is None else self.fewest_facts
        shortest = babi.PLAIN_FACT[self.kind] * fewest
        needed = max(shortest + RESERVED, math.ceil(shortest / self.facts_share))
        hint = (
            f"The shortest stories of {self.kind} take {shortest}; facts_share allows {self.facts_share} of a sample."
        )
        expect(length >= needed, type(self).__name__, "length", f"be at least {needed} tokens", length, hint)

    def _in_rows(self, questions_by_row: Sequence[Sequence[babi.Question]], count: int) -> tuple[Tensor, Tensor]:
        """Tokens and labels of some questions per row."""
        rows = [
            [(self.question_tokens(question.text), self.answer_tokens(question.answer)) for question in row]
            for row in questions_by_row
        ]
        return question_rows(rows, count, self._special("pad_token"))

    def _tokens(self, sentence: str) -> np.ndarray:
        is_word = sentence == NOT_IN_TEXT and self.tokenizer is None
        return sentence_tokens(self.words, f" {UNKNOWN if is_word else sentence}")

    def _special(self, name: str) -> int:
        return token_of(self.vocabulary, self.special_tokens[name])

    def _story(self, random: Random, split: str, length: int) -> babi.Story:
        """One for a sample of `length` tokens, in which it may have no room all the same."""
        if self.stories is not None:
            return random.choice(babi.stories_of(self.stories, self.kind, split, self.contents))
        most_facts = int(self.facts_share * length) // babi.SHORTEST_FACT[self.kind]
        while True:
            story = babi.generate(self.kind, random, most_facts, self.fewest_facts)
            if Random(" ".join(story.facts)).randrange(10) in SPLIT_TENTHS[split]:
                return story


def _book_name(file: Path) -> str:
    """Packed or not."""
    return file.name.removesuffix(".gz")
