"""What a curriculum trains on: text of growing length, or a task's questions about texts of growing length."""

import hashlib
import math
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from tessera.base.beginnings import BEGINS_WITH_BOS
from tessera.base.errors import TesseraError, expect
from tessera.data.windows import stacked
from tessera.evaluation.questions import answer_loss, count_answers, is_segmented, score_answers
from tessera.memory_files.answering import QUESTION_FORMAT
from tessera.memory_files.certainty import measured
from tessera.models.adjusting import adjust_model, adjusted_config
from tessera.recipes.model_section import segment_tokens, untrained_config
from tessera.recipes.sections import Recipe, Stage
from tessera.tasks.question_answering import QuestionBatch, QuestionTask, question_task
from tessera.training.corpus import open_corpus
from tessera.training.distributed import SINGLE_PROCESS, Processes, batch_shape, micro_batches
from tessera.training.training_data import CorpusData, TextData, TrainingData

LOSS_SHARE = 1e-3  # of a score: between equal shares of right answers the loss decides
CHECKED = 4  # contexts of each split that the checksum of a task covers


class StagedData(TrainingData):
    """Batches and validations of stages of growing length."""

    @abstractmethod
    def require(self, stage: Stage) -> None:
        """Raise `TesseraError` unless there is text for this stage."""

    @abstractmethod
    def predictions(self, model: nn.Module, stage: Stage) -> dict[str, float]:
        """As `validation`, before what the model charges for a text; `score` lies in (0, 1]."""

    def validation(self, model: nn.Module, stage: Stage) -> dict[str, float]:
        """See `TrainingData`: `predictions`, whose score is lower by what the model charges for a text."""
        with self.autocast(), recorded_penalties(model) as penalties:
            numbers = self.predictions(model, stage)
        of_texts = torch.tensor([[penalty.item() * rows, rows] for penalty, rows in penalties], dtype=torch.double)
        total, texts = self.processes.total(of_texts.view(-1, 2).sum(0)).tolist()
        if not texts:
            return numbers
        return {**numbers, "score": numbers["score"] - total / texts, "validation_penalty": total / texts}

    def seed_of(self, number: int, step: int) -> int:
        """The seed of a step's batch."""
        return (self.recipe.seed * 100 + number) * 10_000_000 + step


@contextmanager
def recorded_penalties(model: nn.Module) -> Iterator[list[tuple[Tensor, int]]]:
    """While it lasts, the `penalty` of every output of `model` that has one and no loss to hold it, and its rows."""
    penalties: list[tuple[Tensor, int]] = []

    def record(module: nn.Module, arguments: tuple, keywords: dict[str, Any], output: Any) -> None:
        penalty = getattr(output, "penalty", None)
        if penalty is not None and output.loss is None:
            penalties.append((penalty, len(keywords["input_ids"])))

    with model.register_forward_hook(record, with_kwargs=True):
        yield penalties


def open_data(
    recipe: Recipe, run: Path, *, saved_tokenizer: bool, processes: Processes = SINGLE_PROCESS
) -> TrainingData:
    """What the recipe trains on, its task or its text; `saved_tokenizer`: see `open_corpus`.

    Raises `TesseraError`: an unknown task, a setting that it does not have, text that is missing or too short.
    """
    segment = segment_tokens(recipe)
    if recipe.data.task is not None:
        questions = StagedQuestions(recipe, segment, question_task(recipe.data.task), processes=processes)
        if ends := questions.sentence_ends:
            adjusted_config(untrained_config(recipe), {"segment_end_ids": ends}, "data.task.sentence_ends")
        data: StagedData = questions
    else:
        corpus = open_corpus(recipe, run, saved_tokenizer=saved_tokenizer)
        if not recipe.training.curriculum:
            return TextData(recipe, segment, corpus, processes=processes)
        data = StagedText(recipe, segment, corpus, processes=processes)
    for stage in recipe.training.curriculum:
        data.require(stage)
    return data


@dataclass(frozen=True)
class StagedText(CorpusData, StagedData):
    """Windows of a corpus, from random places; the score is exp(-loss), the geometric mean of the probabilities."""

    def require(self, stage: Stage) -> None:
        """Both texts must hold a window."""
        if stage.settings:
            raise TesseraError("training.curriculum: settings is of questions (data.task); this recipe trains on text.")
        self.corpus.training.require(stage.length * self.segment, "the training text")
        self.corpus.validation.require(stage.length * self.segment, "the validation text")

    def parts(self, stage: Stage, number: int, step: int) -> list[dict[str, Tensor]]:
        """See `CorpusData`."""
        split, context = self.corpus.training, stage.length_at(step, self.recipe.seed) * self.segment
        random = Random(self.seed_of(number, step))
        starts = [random.randint(split.start, split.stop - context) for _ in range(self.recipe.training.batch_size)]
        windows = [split.window(start, context, self.recipe.data.document_ids) for start in starts]
        return [stacked(windows[slice(*rows)]) for rows in micro_batches(self.recipe.training, self.processes)]

    def predictions(self, model: nn.Module, stage: Stage) -> dict[str, float]:
        """See `CorpusData.measured`."""
        numbers = self.measured(model, stage)
        return {"score": math.exp(-numbers["validation_loss"]), **numbers}


@dataclass(frozen=True)
class StagedQuestions(StagedData):
    """Questions about contexts of as many tokens as the task gives a few segments.

    With `data.early_questions` they are asked of the memory after every segment too. The score is the share of right
    answers, but for a thousandth: exp(-loss). Contexts count once each, as in tests: questions about one depend.
    """

    task: QuestionTask
    _tasks: dict[str, QuestionTask] = field(default_factory=dict, compare=False, repr=False)

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer of the task."""
        return task_tokenizer(self.task)

    def checksums(self) -> dict[str, dict[str, Any]]:
        """Of a few samples of each split, as the first stage has them, and of the files that the tasks read."""
        stage = self.recipe.training.curriculum[0]
        files = sorted({str(getattr(self.task_of(each), "contents", "")) for each in self.recipe.training.curriculum})

        def entry(split: str) -> dict[str, Any]:
            batch = self.batch(stage, CHECKED, self.lengths(stage, stage.length)[-1], 0, split)
            parts = (batch.contexts, batch.questions, batch.labels)
            digest = hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts) + "".join(files).encode())
            return {"tokens": batch.contexts.numel(), "checksums": [digest.hexdigest()]}

        return {"training": entry("train"), "validation": entry("validation")}

    def require(self, stage: Stage) -> None:
        """The shortest context must hold the shortest story; the stage's settings must be the task's."""
        task = self.task_of(stage)
        is_same, got = task.vocabulary.get_vocab() == self.task.vocabulary.get_vocab(), ", ".join(stage.settings)
        expect(is_same, "training.curriculum", "settings of a stage", "leave the vocabulary as it is", got)
        self.batch(stage, 1, self.lengths(stage, stage.min_length)[0], 0, "train")

    def lengths(self, stage: Stage, segments: int) -> range:
        """Tokens that contexts of so many segments may have in this stage."""
        return self.task_of(stage).context_lengths(segments, self.segment)

    def batch_tokens(self, stage: Stage, number: int, step: int) -> int:
        """See `TrainingData`; contexts end before their last segment does."""
        lengths = self.lengths(stage, stage.length_at(step, self.recipe.seed))
        drawn = Random(self.seed_of(number, step)).randint(0, len(lengths) - 1)
        return self.recipe.training.batch_size * lengths[-1 - drawn]

    def losses(self, model: nn.Module, stage: Stage, number: int, step: int) -> Iterator[Tensor]:
        """Of the answers of the batch, and what the model charges for calls without a loss of their own."""
        count, early = self.recipe.training.batch_size, self.recipe.data.early_questions
        tokens, seed = self.batch_tokens(stage, number, step) // count, self.seed_of(number, step)
        batch = self.batch(stage, count, tokens, seed, "train", early if is_segmented(model) else 0)
        parts = [batch.rows(*rows) for rows in micro_batches(self.recipe.training, self.processes)]
        answers = self.processes.total(torch.stack([count_answers(model, part) for part in parts]).sum())
        for part in parts:
            with self.autocast(), recorded_penalties(model) as penalties:
                loss = answer_loss(model, part)[0] / answers
            charged = sum(penalty for penalty, _ in penalties) / (len(parts) * self.processes.count)
            yield loss + charged if penalties else loss

    def predictions(self, model: nn.Module, stage: Stage) -> dict[str, float]:
        """Means over contexts: the share of right answers, and their batch's loss per token of its answers.

        With answers of unequal lengths that loss is not the mean over all tokens. It stays what stored results have.
        """
        training, losses, shares = self.recipe.training, 0.0, 0.0
        micro, _ = batch_shape(training, self.processes.count)
        for first in range(0, training.evaluate_sequences, training.batch_size):
            count = min(training.batch_size, training.evaluate_sequences - first)
            batch = self.batch(stage, count, self.lengths(stage, stage.length)[-1], first, "validation")
            start, stop = self.processes.shard_rows(count)
            sums = torch.zeros(3, dtype=torch.double)  # of the loss, of its tokens, of shares of right answers
            for row in range(start, stop, micro):
                total, answers, right = score_answers(model, batch.rows(row, min(row + micro, stop)))
                sums += torch.tensor([total.item(), answers.item(), right.sum().item()], dtype=torch.double)
            loss, tokens, shares_right = self.processes.total(sums).tolist()
            losses += loss / tokens * count
            shares += shares_right
        exact_match, mean_loss = (total / training.evaluate_sequences for total in (shares, losses))
        score = (1 - LOSS_SHARE) * exact_match + LOSS_SHARE * math.exp(-mean_loss)
        return {"score": score, "validation_loss": mean_loss, "validation_exact_match": exact_match}

    @property
    def sentence_ends(self) -> list[int]:
        """The tokens of the task's `sentence_ends`. Raises `TesseraError` where one of these marks is not a token."""
        task = self.task_of(self.recipe.training.curriculum[-1])
        marks, tokens = getattr(task, "sentence_ends", "").split(), task.vocabulary.get_vocab()
        for mark in marks:
            expect(mark in tokens, "data.task", "sentence_ends", "be tokens of the task", repr(mark))
        return [tokens[mark] for mark in marks]

    def finish(self, model: Any) -> None:
        """End segments at sentences; let `model` keep how long answers are, and how sure one can be of them."""
        if ends := self.sentence_ends:
            adjust_model(model, {"segment_end_ids": ends})
        stages, (micro, _) = self.recipe.training.curriculum, batch_shape(self.recipe.training, self.processes.count)
        task, tokens = self.task_of(stages[-1]), max(stage.length for stage in stages) * self.segment
        model.generation_config.max_new_tokens = task.longest_answer
        if self.processes.is_first and (certainty := measured(model, task, tokens, self.segment, micro)) is not None:
            certainty.store(model)

    def batch(self, stage: Stage, count: int, tokens: int, seed: int, split: str, early: int = 0) -> QuestionBatch:
        """Contexts of so many tokens, with the settings of the stage."""
        questions = self.recipe.data.questions
        return self.task_of(stage).question_batch(count, questions, tokens, seed, split, early, self.segment)

    def task_of(self, stage: Stage) -> QuestionTask:
        """The task with the settings of the stage."""
        if not stage.settings:
            return self.task
        if (settings := repr(stage.settings)) not in self._tasks:  # made once: its files stay as they were read
            section = {**(self.recipe.data.task or {}), **stage.settings}
            self._tasks[settings] = question_task(section, "training.curriculum: settings")
        return self._tasks[settings]


def task_tokenizer(task: QuestionTask) -> PreTrainedTokenizerFast:
    """The task's words as a tokenizer, which keeps how a question is put: see `question_format`."""
    special = dict(task.special_tokens)
    named = {"answer_token": special.pop("answer_token")} if "answer_token" in special else {}
    kept = {BEGINS_WITH_BOS: False, **({} if named else {QUESTION_FORMAT: getattr(task, QUESTION_FORMAT)})}
    return PreTrainedTokenizerFast(tokenizer_object=task.vocabulary, extra_special_tokens=named, **kept, **special)
