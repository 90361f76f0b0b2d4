"""Questions about a text that is read once: what a task of questions and answers gives for training and scoring."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from tessera.base.dataclass_io import read_dataclass
from tessera.base.errors import TesseraError, did_you_mean
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.tasks.task import TASKS

NOT_IN_TEXT = "not in this text"  # the answer to a question that a text does not answer; as a token, `unk_token`


@dataclass(frozen=True)
class QuestionBatch:
    """Contexts, and several questions about each.

    Attributes:
        contexts: tokens (B, T). questions: (B, Q, t), each a question, its answer, and padding. labels: (B, Q, t), the
            token where its prediction counts (the answer), -100 elsewhere; not shifted. Where a context has fewer than
            Q questions, some stand twice and count once.
        early_questions, early_labels: (B, S, Q, t), the same about what was read up to the end of each of the first S
            segments of the contexts; None: not asked.
        sources: (B,), which of the books each context begins in, as numbers; for errors. None: there are no books.
    """

    contexts: Tensor
    questions: Tensor
    labels: Tensor
    early_questions: Tensor | None = None
    early_labels: Tensor | None = None
    sources: Tensor | None = None

    def rows(self, start: int, stop: int) -> "QuestionBatch":
        """The contexts `start` to `stop`, with their questions."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: part[start:stop] for name, part in parts.items() if part is not None})

    @property
    def counts(self) -> Tensor:
        """Which questions count, booleans (B, Q)."""
        return (self.labels != IGNORED).any(-1)


@runtime_checkable
class QuestionTask(Protocol):
    """A task whose samples are contexts with questions."""

    @property
    def vocabulary(self) -> Tokenizer:
        """The tokenizer that makes tokens of texts, questions and answers."""

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """`pad_token`, `eos_token` (after an answer), and perhaps `unk_token` and `answer_token` (after a question).

        A task without `answer_token` has a `question_format`, a text with "{question}" in it.
        """

    @property
    def understands(self) -> str:
        """For people: what can be asked, of what in a text, and what is answered."""

    @property
    def longest_answer(self) -> int:
        """Tokens of the longest answer, without its end."""

    def is_known(self, question: str) -> bool:
        """Whether training asks such questions, with other names in them perhaps."""

    def is_stated(self, sentence: str) -> bool:
        """Whether texts of the training hold such sentences that answer, with other names in them perhaps."""

    def context_lengths(self, segments: int, segment: int) -> range:
        """Tokens that contexts of so many segments may have: training draws one, a validation takes the last."""

    def question_batch(
        self, count: int, questions: int, context_tokens: int, seed: int, split: str, early: int = 0, segment: int = 0
    ) -> QuestionBatch:
        """`count` contexts of `context_tokens` tokens, with `questions` questions each.

        With `early`, up to so many are asked after every `segment` tokens too. The same settings and arguments give
        the same bytes. Raises `TesseraError` where contexts are too short to ask about.
        """


def question_task(section: dict[str, Any], where: str = "data.task") -> QuestionTask:
    """The task that `section` names, with its settings; errors say `where` they stand in the recipe."""
    name = section["name"]
    known = sorted(key for key, cls in TASKS.items() if hasattr(cls, "question_batch"))
    if name not in known:
        raise TesseraError(f"{where}.name must be a task of questions; got {name!r}. {did_you_mean(str(name), known)}")
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in section.items()}
    del settings["name"]
    problems: list[str] = []
    task = read_dataclass(TASKS[name], settings, lambda key, what: problems.append(f"{where}.{key} {what}"))
    if problems:
        raise TesseraError("\n".join(problems))
    return task


def question_rows(
    rows: Sequence[Sequence[tuple[np.ndarray, np.ndarray]]], count: int, pad: int
) -> tuple[Tensor, Tensor]:
    """Tokens and labels (rows, count, t) of rows of (question, answer); where there are fewer, some stand twice."""
    width = max((len(question) + len(answer) for row in rows for question, answer in row), default=1)
    tokens = torch.full((len(rows), count, width), pad)
    labels = torch.full((len(rows), count, width), IGNORED)
    for index, row in enumerate(rows):
        for column in range(count if row else 0):
            question, answer = row[column % len(row)]
            both = torch.from_numpy(np.append(question, answer).astype(np.int64))
            tokens[index, column, : len(both)] = both
            if column < len(row):
                labels[index, column, len(question) : len(both)] = both[len(question) :]
    return tokens, labels
