"""How sure one can be that a text answers a question: measured on questions that texts answer, and on others."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from tessera.base.dataclass_io import from_json
from tessera.evaluation.questions import question_logits
from tessera.models.carried_state import read_on
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.tasks.question_answering import QuestionBatch, QuestionTask

NAME = "certainty"  # of the field of a model's generation_config
CONTEXTS, DRAWN, QUESTIONS = 128, 8, 4  # of the measurement; so many contexts are drawn together
ABSENT = 0.3  # of the contexts hold nothing, and of the questions about the others are not answered: half of all
LARGEST_LOG_ODDS = 15.0
RIDGE = 1.0  # of features whose standard deviation is 1


@dataclass(frozen=True)
class Certainty:
    """The probability that a text answers a question: 1 / (1 + exp(-w . (1, f))), f being `features`.

    Attributes:
        weights: w. tokens: of the texts that it was measured on. questions: that it was tested on, other ones than w
            was fitted to. told: the share of these where "not in this text" is said rightly, or rightly not.
            missed: of those that the texts answer, the share of which it is said. false_answers: of the others, the
            share that get an answer. Both are None where they were not counted.
    """

    weights: tuple[float, ...]
    tokens: int
    questions: int
    told: float
    missed: float | None = None
    false_answers: float | None = None

    @classmethod
    def of(cls, model: Any) -> "Certainty | None":
        """What was measured of `model`, if it was. Raises `TesseraError` for one that somebody spoiled."""
        stored = getattr(model.generation_config, NAME, None)
        return None if stored is None else from_json(cls, stored, f"generation_config.json: {NAME}")

    def store(self, model: Any) -> Self:
        """Keep it in `model`, which saves it."""
        setattr(model.generation_config, NAME, {**asdict(self), "weights": list(self.weights)})
        model.generation_config._from_model_config = False  # else transformers would not read it again
        return self

    def probabilities(self, logits: Tensor, without: Tensor, unknown: int) -> Tensor:
        """That the text answers, (N,). Arguments: see `features`."""
        rows = features(logits, without, unknown)
        return torch.sigmoid(rows @ torch.tensor(self.weights, dtype=rows.dtype))

    def described(self) -> str:
        """How it was measured, in words."""
        measured = f"measured on {self.questions:,} questions about texts of {self.tokens:,} tokens"
        if self.missed is None or self.false_answers is None:
            return f"{measured}, of which {100 * self.told:.0f} % were told apart"
        return (
            f"{measured}: of those that the texts answer {100 * self.missed:.0f} % were called not in the text, of the "
            f"others {100 * self.false_answers:.0f} % were answered"
        )


def features(logits: Tensor, without: Tensor, unknown: int) -> Tensor:
    """What an answer looks like, (N, 4): 1, its log odds, its distance from that without a text, log odds of `unknown`.

    Args:
        logits, without: (N, V) of the first token of the answer, behind the text and without it. unknown: the token of
            "not in this text", which only models that were trained with such questions say.
    """
    chances, others = (part.double().cpu().softmax(-1) for part in (logits, without))
    distance = (chances - others).abs().sum(-1) / 2
    of_answer, of_unknown = (
        torch.logit(part).clamp(-LARGEST_LOG_ODDS, LARGEST_LOG_ODDS) for part in (chances.amax(-1), chances[:, unknown])
    )
    return torch.stack([torch.ones_like(distance), of_answer, distance, of_unknown], 1)


@torch.no_grad()
def measured(model: Any, task: QuestionTask, tokens: int, segment: int, at_once: int) -> Certainty | None:
    """How well answers tell whether texts of so many tokens hold them, as half of them do; None: not of this task.

    `at_once`: contexts that the model reads together.
    """
    token = task.vocabulary.token_to_id(task.special_tokens.get("unk_token", ""))
    if token is None or not hasattr(task, "absent"):
        return None
    half: Any = replace(task, absent=ABSENT)  # type: ignore[type-var]
    rows, answered = [], []
    for first in range(0, CONTEXTS, DRAWN):
        drawn = half.question_batch(DRAWN, QUESTIONS, tokens, first, "validation", 0, segment)
        batches = [drawn.rows(row, row + at_once) for row in range(0, DRAWN, at_once)]
        parts = [_features_of(model, batch, token) for batch in batches]
        rows.append(torch.cat([of_batch for of_batch, _ in parts]))
        answered.append(torch.cat([of_batch for _, of_batch in parts]))
    return fitted(rows, answered, tokens)


def _features_of(model: Any, batch: QuestionBatch, unknown: int) -> tuple[Tensor, Tensor]:
    """`features` of the answers that count, and whether the texts answer."""
    logits, labels = question_logits(model, batch), batch.labels.flatten(0, 1)
    without, _ = read_on(model, batch.questions.flatten(0, 1).to(model.device), None)
    counts = batch.counts.flatten()
    begins = (labels != IGNORED).int().argmax(-1)
    index = torch.arange(len(labels))
    before = [scores[index, begins - 1] for scores in (logits.cpu(), without.cpu())]
    return features(before[0], before[1], unknown)[counts], (labels[index, begins] != unknown)[counts]


def fitted(rows: list[Tensor], answered: list[Tensor], tokens: int) -> Certainty:
    """Logistic regression on every second part of `rows` (features) and `answered` (booleans), tested on the others."""
    inputs, targets = torch.cat(rows[::2]), torch.cat(answered[::2]).double()
    means, deviations = inputs[:, 1:].mean(0), inputs[:, 1:].std(0).clamp_min(1e-6)
    inputs = torch.cat([inputs[:, :1], (inputs[:, 1:] - means) / deviations], 1)
    weights = torch.zeros(inputs.shape[1], dtype=torch.double)
    ridge = RIDGE * torch.eye(len(weights), dtype=torch.double)
    ridge[0, 0] = 1e-6

    def loss(at: Tensor) -> float:
        return float(binary_cross_entropy_with_logits(inputs @ at, targets, reduction="sum") + at @ ridge @ at / 2)

    for _ in range(100):  # Newton's method; a step that does not lower the loss is halved until it does
        chances = torch.sigmoid(inputs @ weights)
        gradient = inputs.T @ (chances - targets) + ridge @ weights
        curvature = (inputs.T * (chances * (1 - chances))) @ inputs + ridge
        step, before = torch.linalg.solve(curvature, gradient), loss(weights)
        while loss(weights - step) > before and float(step.abs().max()) > 1e-9:
            step = step / 2
        weights = weights - step
    weights[1:] /= deviations
    weights[0] -= weights[1:] @ means
    others, right = torch.cat(rows[1::2]), torch.cat(answered[1::2])
    # A model that says "not in this text" by itself is believed.
    is_said = (torch.sigmoid(others @ weights) < 0.5) | (others[:, 1] <= others[:, 3])
    is_wrong = (is_said == right).double()
    shares = (float(is_wrong[of].mean()) if of.any() else None for of in (right, ~right))
    return Certainty(tuple(weights.tolist()), tokens, len(right), 1 - float(is_wrong.mean()), *shares)
