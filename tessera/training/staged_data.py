"""What a curriculum trains on: text of growing length, or a task's questions about texts of growing length."""

import hashlib
import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from tessera.base.dataclass_io import read_dataclass
from tessera.base.errors import TesseraError, did_you_mean
from tessera.data.windows import ValidationWindows
from tessera.evaluation.loss import LossByPosition, bits_per_byte, loss_by_position
from tessera.evaluation.questions import answer_loss, is_segmented, score_answers
from tessera.memories.association import recorded_openings
from tessera.papers.babilong.sample import RESERVED
from tessera.papers.babilong.vocabulary import END, PAD, UNKNOWN
from tessera.recipes.sections import Recipe, Stage
from tessera.tasks.question_answering import QuestionBatch, QuestionTask
from tessera.tasks.task import TASKS
from tessera.training.corpus import Corpus, open_corpus
from tessera.training.distributed import SINGLE_PROCESS, Processes
from tessera.training.training_data import TrainingData

LOSS_SHARE = 1e-3  # of a score: between equal shares of right answers the loss decides
CHECKED = 4  # contexts of each split that the checksum of a task covers


@dataclass(frozen=True)
class StagedData(TrainingData):
    """Batches and validations of stages of growing length."""

    @abstractmethod
    def require(self, stage: Stage) -> None:
        """Raise `TesseraError` unless there is text for this stage."""

    @abstractmethod
    def prediction_loss(self, model: nn.Module, stage: Stage, number: int, step: int) -> Tensor:
        """Mean cross entropy in nats of what the batch of a step of stage `number` asks for.

        Of several processes each gives its part, and the sum of these is the mean.
        """

    @abstractmethod
    def predictions(self, model: nn.Module, stage: Stage) -> dict[str, float]:
        """How well `model` does on held-out text. `score` in (0, 1], higher is better, is what chooses weights.

        All processes must call it, and get the same numbers.
        """

    def begin(self, model: Any, stage: Stage) -> None:
        """Set in `model` what holds from this stage on."""
        if stage.strength_threshold is not None:
            model.write_from(stage.strength_threshold)

    def loss(self, model: nn.Module, stage: Stage, number: int, step: int) -> Tensor:
        """`prediction_loss`, and what the stage's writes cost."""
        if not stage.write_cost:
            return self.prediction_loss(model, stage, number, step)
        with recorded_openings(model) as openings:
            loss = self.prediction_loss(model, stage, number, step)
        total, count = _summed([opening for opening in openings if opening.requires_grad])
        return loss + stage.write_cost * total / (count * self.processes.count)

    def validation(self, model: nn.Module, stage: Stage) -> dict[str, float]:
        """The numbers of a line of metrics: `predictions`, whose score is lower by what the stage's writes cost."""
        if not stage.write_cost:
            with self.autocast():
                return self.predictions(model, stage)
        with self.autocast(), recorded_openings(model) as openings:
            numbers = self.predictions(model, stage)
        total, count = (part.double() for part in _summed(openings))
        sums = self.processes.total(torch.stack([total, count]).cpu())
        mean = (sums[0] / sums[1]).item()
        return {**numbers, "score": numbers["score"] - stage.write_cost * mean, "validation_opening": mean}

    def losses(self, model: nn.Module, stage: Stage, number: int, step: int) -> Iterator[Tensor]:
        """See `TrainingData`."""
        with self.autocast():
            loss = self.loss(model, stage, number, step)
        yield loss

    def seed_of(self, number: int, step: int) -> int:
        """Of a step's batch."""
        return (self.recipe.seed * 100 + number) * 10_000_000 + step


def _summed(openings: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The sum, and how many there are, at least 1: texts of one segment that stays open write nothing."""
    if not openings:
        return torch.zeros(()), torch.ones(())
    flat = torch.cat([opening.flatten() for opening in openings])
    return flat.sum(), flat.new_tensor(flat.numel())


def open_staged_data(
    recipe: Recipe, run: Path, *, saved_tokenizer: bool, processes: Processes = SINGLE_PROCESS
) -> StagedData:
    """The task of the recipe, else its text; `saved_tokenizer`: see `open_corpus`.

    Raises:
        TesseraError: an unknown task, a setting that it does not have, text that is missing or too short; a cost of
            writes of a model that has no gates of writing, or whose gates cannot close; `backprop_segments` of
            one that reads no segments.
    """
    segment = recipe.model.get("segment_size", recipe.data.context)
    if recipe.data.task is None:
        corpus = open_corpus(recipe, run, saved_tokenizer=saved_tokenizer)
        data: StagedData = StagedText(recipe, segment, corpus, processes=processes)
    else:
        data = StagedQuestions(recipe, segment, question_task(recipe.data.task), processes=processes)
    for stage in recipe.training.curriculum:
        kind = recipe.model["type"]
        for name, unset in (("write_cost", 0.0), ("strength_threshold", None)):
            if getattr(stage, name) != unset and kind != "armt":
                raise TesseraError(f"training.curriculum: {name} is of models of type 'armt'; got {kind!r}.")
        if stage.write_cost and not recipe.model.get("strength_stretch"):
            raise TesseraError(
                "training.curriculum: write_cost needs a model with a `strength_stretch` above 0, whose gates can "
                f"close; got {recipe.model.get('strength_stretch', 0)}."
            )
        if stage.backprop_segments and "segment_size" not in recipe.model:
            raise TesseraError(f"training.curriculum: backprop_segments is of models with segments; got {kind!r}.")
        data.require(stage)
    return data


@dataclass(frozen=True)
class StagedText(StagedData):
    """Windows of a corpus, from random places; the score is exp(-loss), the geometric mean of the probabilities."""

    corpus: Corpus

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The corpus's."""
        return self.corpus.tokenizer

    def checksums(self) -> dict[str, dict[str, Any]]:
        """The corpus's."""
        return self.corpus.checksums()

    def require(self, stage: Stage) -> None:
        """Both texts must hold a window."""
        for name in ("from_memory", "settings"):
            if getattr(stage, name):
                raise TesseraError(
                    f"training.curriculum: {name} is of questions (data.task); this recipe trains on text."
                )
        if stage.backprop_segments:
            raise TesseraError(
                "training.curriculum: backprop_segments is of questions (data.task); of text it is "
                "model.backprop_segments."
            )
        for split, what in (
            (self.corpus.training, "the training text"),
            (self.corpus.validation, "the validation text"),
        ):
            split.require(stage.length * self.segment, what)

    def prediction_loss(self, model: nn.Module, stage: Stage, number: int, step: int) -> Tensor:
        """Of all tokens."""
        split, context = self.corpus.training, stage.length_at(step, self.recipe.seed) * self.segment
        random = Random(self.seed_of(number, step))
        starts = [random.randint(split.start, split.stop - context) for _ in range(self.recipe.training.batch_size)]
        mine = slice(*self.processes.shard_rows(len(starts)))
        tokens = torch.stack([split.window(start, context)["input_ids"] for start in starts[mine]])
        tokens = tokens.to(next(model.parameters()).device)
        return model(input_ids=tokens, labels=tokens).loss / self.processes.count

    def predictions(self, model: nn.Module, stage: Stage) -> dict[str, float]:
        """Loss and bits per byte."""
        training, processes = self.recipe.training, self.processes
        windows = ValidationWindows(self.corpus.validation, stage.length * self.segment, training.evaluate_sequences)
        own_batch = training.batch_size // processes.count
        part = loss_by_position(model, windows, own_batch, rank=processes.rank, world_size=processes.count)
        loss = LossByPosition(*processes.total(torch.stack([part.total, part.count]))).mean
        bits = bits_per_byte(loss, self.corpus.validation.tokens_per_byte)
        return {"score": math.exp(-loss), "validation_loss": loss, "validation_bits_per_byte": bits}


@dataclass(frozen=True)
class StagedQuestions(StagedData):
    """Questions about contexts that are a few tokens short of `length` segments, so that question and answer fit in.

    Contexts of several segments end anywhere in the last one, so that a model also learns to answer from its memory
    alone; with `data.early_questions` it is asked of the memory after every segment. Those of a validation end where
    the published samples do. Where a stage asks `from_memory`, all end with a segment. The score is the share of right
    answers, but for a thousandth: exp(-loss).
    """

    task: QuestionTask

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The task's words."""
        special = {"unk_token": UNKNOWN, "pad_token": PAD, "eos_token": END}
        return PreTrainedTokenizerFast(tokenizer_object=self.task.vocabulary, **special)

    def checksums(self) -> dict[str, dict[str, Any]]:
        """Of a few samples of each split, as the first stage has them."""

        stage = self.recipe.training.curriculum[0]
        tokens = stage.length * self.segment

        def entry(split: str) -> dict[str, Any]:
            batch = self.batch(stage, CHECKED, tokens, 0, split)
            parts = (getattr(batch, one.name) for one in fields(batch))
            digest = hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts if part is not None))
            return {"tokens": batch.contexts.numel(), "checksums": [digest.hexdigest()]}

        return {"training": entry("train"), "validation": entry("validation")}

    def require(self, stage: Stage) -> None:
        """The shortest context must hold the shortest story; the stage's settings must be the task's."""
        task = self.task_of(stage)
        if task.vocabulary.get_vocab() != self.task.vocabulary.get_vocab():
            raise TesseraError(
                "training.curriculum: settings of a stage must leave the vocabulary as it is; got "
                f"{', '.join(stage.settings)}."
            )
        self.batch(stage, 1, self.tokens(stage, stage.min_length, self.most_left_out), 0, "train")

    def tokens(self, stage: Stage, length: int, left_out: int = 0) -> int:
        """Of a sample of `length` segments, question and answer included, that ends `left_out` tokens early."""
        if stage.from_memory:
            return length * self.segment + RESERVED
        return length * self.segment - (left_out if length > 1 else 0)

    @property
    def most_left_out(self) -> int:
        """Tokens by which a context of several segments may end before the published place: to the last border."""
        return self.segment - RESERVED

    def prediction_loss(self, model: nn.Module, stage: Stage, number: int, step: int) -> Tensor:
        """Of the answers."""
        length, seed = stage.length_at(step, self.recipe.seed), self.seed_of(number, step)
        tokens = self.tokens(stage, length, Random(seed).randint(0, self.most_left_out))
        count, early = self.recipe.training.batch_size, self.recipe.data.early_questions
        batch = self.batch(stage, count, tokens, seed, "train", early if is_segmented(model) else 0)
        part = batch.rows(*self.processes.shard_rows(count))
        total, answers = answer_loss(model, part, stage.backprop_segments)
        return total / self.processes.total(answers)

    def predictions(self, model: nn.Module, stage: Stage) -> dict[str, float]:
        """The share of right answers, and the loss of the answers."""
        training, losses, shares = self.recipe.training, 0.0, 0.0
        for first in range(0, training.evaluate_sequences, training.batch_size):
            count = min(training.batch_size, training.evaluate_sequences - first)
            batch = self.batch(stage, count, self.tokens(stage, stage.length), first, "validation")
            start, stop = self.processes.shard_rows(count)
            sums = torch.zeros(3, dtype=torch.double)  # of the loss, of its tokens, of shares of right answers
            if start < stop:
                total, answers, right = score_answers(model, batch.rows(start, stop))
                sums = torch.tensor([total.item(), answers.item(), right.sum().item()], dtype=torch.double)
            loss, tokens, shares_right = self.processes.total(sums).tolist()
            losses += loss / tokens * count
            shares += shares_right
        exact_match, mean_loss = (total / training.evaluate_sequences for total in (shares, losses))
        score = (1 - LOSS_SHARE) * exact_match + LOSS_SHARE * math.exp(-mean_loss)
        return {"score": score, "validation_loss": mean_loss, "validation_exact_match": exact_match}

    def batch(self, stage: Stage, count: int, tokens: int, seed: int, split: str, early: int = 0) -> QuestionBatch:
        """Contexts of `tokens` - 20 tokens, with the settings of the stage."""
        return self.task_of(stage).question_batch(
            count, self.recipe.data.questions, tokens - RESERVED, seed, split, early, self.segment
        )

    def task_of(self, stage: Stage) -> QuestionTask:
        """The task with the settings of the stage."""
        if not stage.settings:
            return self.task
        return question_task({**(self.recipe.data.task or {}), **stage.settings}, "training.curriculum: settings")


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
