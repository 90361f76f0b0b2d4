"""Questions about a text that is read once: what a task of questions and answers gives for training and scoring."""

from dataclasses import dataclass, fields, replace
from typing import Protocol, runtime_checkable

from tokenizers import Tokenizer
from torch import Tensor

from tessera.ops.linear_cross_entropy import IGNORED


@dataclass(frozen=True)
class QuestionBatch:
    """Contexts, and several questions about each.

    Attributes:
        contexts: tokens (B, T). questions: (B, Q, t), each a question, its answer, and padding. labels: (B, Q, t), the
            token where its prediction counts (the answer), -100 elsewhere; not shifted. Where a context has fewer than
            Q questions, some stand twice and count once.
        early_questions, early_labels: (B, S, Q, t), the same about what was read up to the end of each of the first S
            segments of the contexts; None: not asked.
    """

    contexts: Tensor
    questions: Tensor
    labels: Tensor
    early_questions: Tensor | None = None
    early_labels: Tensor | None = None

    def rows(self, start: int, stop: int) -> "QuestionBatch":
        """The contexts `start` to `stop`, with their questions."""
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: part[start:stop] for name, part in parts.items() if part is not None})

    @property
    def answer_places(self) -> Tensor:
        """Where in `questions` each answer begins, (B, Q); 0 where a question does not count."""
        return (self.labels != IGNORED).int().argmax(-1)

    @property
    def counts(self) -> Tensor:
        """Which questions count, booleans (B, Q)."""
        return (self.labels != IGNORED).any(-1)


@runtime_checkable
class QuestionTask(Protocol):
    """A task whose samples are contexts with questions."""

    @property
    def vocabulary(self) -> Tokenizer:
        """Text to tokens."""

    def question_batch(
        self, count: int, questions: int, context_tokens: int, seed: int, split: str, early: int = 0, segment: int = 0
    ) -> QuestionBatch:
        """`count` contexts of `context_tokens` tokens, with `questions` questions each.

        With `early`, up to so many are asked after every `segment` tokens too. The same settings and arguments give
        the same bytes.
        """
