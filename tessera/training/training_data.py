"""What a run trains on: batches that are a function of stage and step, and a validation of each stage."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from tessera.base.precision import autocast
from tessera.data.windows import Split, TrainingWindows, ValidationWindows, stacked
from tessera.evaluation.loss import LossByPosition, bits_per_byte, loss_by_position
from tessera.models.adjusting import adjust_model
from tessera.models.recurrence.segment_loss import balancing_weight
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.recipes.sections import Recipe, Stage
from tessera.training.corpus import Corpus
from tessera.training.distributed import SINGLE_PROCESS, Processes, batch_shape, micro_batches


@dataclass(frozen=True)
class TrainingData(ABC):
    """See the module.

    Attributes:
        segment: tokens that one unit of `Stage.length` stands for.
        processes: that share each batch in equal rows, and each validation.
    """

    recipe: Recipe
    segment: int
    processes: Processes = field(default=SINGLE_PROCESS, kw_only=True)

    @property
    @abstractmethod
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """Of its text."""

    @abstractmethod
    def checksums(self) -> dict[str, dict[str, Any]]:
        """Of "training" and "validation": number of `tokens`, and `checksums` that change when these do."""

    @abstractmethod
    def losses(self, model: nn.Module, stage: Stage, number: int, step: int) -> Iterator[Tensor]:
        """The loss of a step of stage `number`, in parts whose sum over all processes it is: one per micro-batch."""

    @abstractmethod
    def validation(self, model: nn.Module, stage: Stage) -> dict[str, float]:
        """How well `model` does on held-out text, as a line of metrics.

        `score` is not written: at most 1, higher is better, it chooses the weights of a curriculum's stages. All
        processes must call it, and get the same numbers.
        """

    def finish(self, model: nn.Module) -> None:  # noqa: B027
        """Let a trained `model` keep what its users need to know; of text, nothing."""

    @property
    def largest_token(self) -> int:
        """The largest token id that occurs; -1: no larger one than the tokenizer's."""
        return -1

    def begin(self, model: Any, stage: Stage) -> None:
        """Set in `model` what holds from this stage on."""
        adjust_model(model, stage.model, "training.curriculum: model")

    def batch_tokens(self, stage: Stage, number: int, step: int) -> int:
        """Tokens of the contexts of a step of stage `number`."""
        return self.recipe.training.batch_size * self.segment * stage.length_at(step, self.recipe.seed)

    def autocast(self) -> AbstractContextManager[None]:
        """The precision of a forward pass."""
        return autocast(self.recipe.training.precision, self.processes.device.type)


@dataclass(frozen=True)
class CorpusData(TrainingData):
    """What is cut from a corpus."""

    corpus: Corpus

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The corpus's."""
        return self.corpus.tokenizer

    def checksums(self) -> dict[str, dict[str, Any]]:
        """Those of the token stores."""
        texts = {name: split.store.description for name, split in self._splits.items()}
        return {name: {"tokens": text.num_tokens, "checksums": list(text.checksums)} for name, text in texts.items()}

    @property
    def largest_token(self) -> int:
        """Of both texts."""
        return max(split.store.description.largest_token for split in self._splits.values())

    @abstractmethod
    def parts(self, stage: Stage, number: int, step: int) -> list[dict[str, Tensor]]:
        """The batch of a step in micro-batches."""

    def losses(self, model: nn.Module, stage: Stage, number: int, step: int) -> Iterator[Tensor]:
        """Of all tokens that have a label: micro-batches with fewer of them count less."""
        parts, options = self.parts(stage, number, step), dict[str, Any]()
        share = count = len(parts) * self.processes.count
        balancing = 0.0
        if takes_num_items(model):
            balancing = balancing_weight(model) if count > 1 else 0.0
            labels = sum((part["labels"][:, 1:] != IGNORED).sum() for part in parts)
            items = self.processes.total(torch.as_tensor(labels)).to(self.processes.device)
            options["num_items_in_batch"], share = items, 1
        if "skip_logits" in inspect.signature(model.forward).parameters:
            options["skip_logits"] = True  # FSDP would have them made: it looks at every field of an output
        for part in parts:
            inputs = {name: tensor.to(self.processes.device) for name, tensor in part.items()}
            with self.autocast():
                output = model(**inputs, **options)
                loss = output.loss / share
                # A model adds its balancing loss to the loss of each part, as to that of a whole batch.
                if balancing and output.get("aux_loss") is not None:
                    loss = loss - balancing * (1 - 1 / count) * output.aux_loss
            yield loss

    def measured(self, model: nn.Module, stage: Stage) -> dict[str, float]:
        """Nats per token and bits per byte of the stage's validation windows, which the processes share."""
        section, context = self.recipe.training, stage.length * self.segment
        options = (section.evaluate_sequences, self.recipe.data.document_ids)
        windows = ValidationWindows(self.corpus.validation, context, *options)
        batch_size, _ = batch_shape(section, self.processes.count)
        share = {"rank": self.processes.rank, "world_size": self.processes.count}
        part = loss_by_position(model, windows, batch_size, context=self.autocast, **share)
        loss = LossByPosition(*self.processes.total(torch.stack([part.total, part.count]))).mean
        bits = bits_per_byte(loss, windows.tokens_per_byte(self.tokenizer))
        return {"validation_loss": loss, "validation_bits_per_byte": bits}

    @property
    def _splits(self) -> dict[str, Split]:
        return {"training": self.corpus.training, "validation": self.corpus.validation}


@dataclass(frozen=True)
class TextData(CorpusData):
    """All windows of a corpus in a random order, pass after pass: what a recipe without a curriculum trains on."""

    def parts(self, stage: Stage, number: int, step: int) -> list[dict[str, Tensor]]:
        """See `CorpusData`."""
        section, data = self.recipe.training, self.recipe.data
        windows = TrainingWindows(self.corpus.training, data.context, self.recipe.seed, data.document_ids)
        first = step * section.batch_size
        return [
            stacked([windows[first + row] for row in range(start, stop)])
            for start, stop in micro_batches(section, self.processes)
        ]

    def validation(self, model: nn.Module, stage: Stage) -> dict[str, float]:
        """See `CorpusData.measured`."""
        return self.measured(model, stage)


def takes_num_items(model: nn.Module) -> bool:
    """Whether the model divides its loss by `num_items_in_batch`, as transformers' own do."""
    parameters: Sequence[inspect.Parameter] = tuple(inspect.signature(model.forward).parameters.values())
    return getattr(model, "accepts_loss_kwargs", any(p.kind is p.VAR_KEYWORD for p in parameters))
