"""Batches of problems of similar length, and a model's answers to many of them."""

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tessera.evaluation.loss import loss_by_position
from tessera.papers.regbench import RegBench
from tessera.tasks.task import TokenExamples

# Lengths are moved by up to this share before they are sorted, so that the batches of each epoch are others.
JITTER = 0.1


class Batches:
    """Each epoch takes every problem once, in batches of `size` of similar length, in random order.

    A batch is a function of `seed` and the step. Padding goes to the right, as far as the longest of the batch.
    """

    def __init__(self, examples: TokenExamples, size: int, seed: int, device: str = "cpu"):
        self.examples, self.size, self.seed, self.device = examples, min(size, len(examples)), seed, device
        self.per_epoch = len(examples) // self.size
        self._epoch, self._order = -1, torch.empty(0)

    def at(self, step: int) -> dict[str, Tensor]:
        """`input_ids` and `labels` of a step."""
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._shuffled(epoch)
        return trimmed(self.examples, self._order[place], self.device)

    def _shuffled(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        lengths = self.examples.details.lengths
        noise = 1 + JITTER * (2 * torch.rand(len(lengths), generator=generator) - 1)
        # What does not fill a batch is left out of an epoch: another part of the problems each time.
        kept = torch.randperm(len(lengths), generator=generator)[: self.per_epoch * self.size]
        order = kept[(lengths * noise)[kept].argsort()].view(self.per_epoch, self.size)
        return order[torch.randperm(self.per_epoch, generator=generator)]


def trimmed(examples: TokenExamples, rows: Tensor, device: torch.device | str = "cpu") -> dict[str, Tensor]:
    """`input_ids` and `labels` of some rows on `device`, without the columns that are padding in all of them."""
    width = int(examples.details.lengths[rows].max())
    parts = {"input_ids": examples.tokens, "labels": examples.labels}
    return {name: part[rows, :width].to(device) for name, part in parts.items()}


def batches_by_length(examples: TokenExamples, size: int) -> Iterator[Tensor]:
    """All rows, `size` at a time, shortest first."""
    yield from examples.details.lengths.argsort(stable=True).split(size)


@torch.no_grad()
def mean_loss(model: PreTrainedModel, examples: TokenExamples, size: int = 32) -> float:
    """Cross entropy in nats per symbol over all examples."""
    total, count = 0.0, 0
    for rows in batches_by_length(examples, size):
        batch = trimmed(examples, rows, model.device)
        num_labels = int((batch["labels"] >= 0).sum())
        total += float(model(**batch).loss) * num_labels
        count += num_labels
    return total / count


class Beginnings:
    """The first tokens of each example, for `evaluation.loss`."""

    def __init__(self, examples: TokenExamples, tokens: int):
        self.examples, self.tokens = examples, tokens

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int, /) -> dict[str, Tensor]:
        return {
            "input_ids": self.examples.tokens[index, : self.tokens],
            "labels": self.examples.labels[index, : self.tokens],
        }


def loss_by_block(model: PreTrainedModel, examples: TokenExamples, block: int = 20, tokens: int = 400) -> list[float]:
    """Cross entropy in nats per symbol over each `block` positions of the first `tokens`; later ones are in few
    problems. As many blocks as hold a label."""
    losses = loss_by_position(model, Beginnings(examples, tokens), batch_size=32)
    pairs = zip(losses.total.split(block), losses.count.split(block))
    return [round(float(total.sum() / count.sum()), 5) for total, count in pairs if count.sum() > 0]


@torch.no_grad()
def scores_of(model: PreTrainedModel, task: RegBench, examples: TokenExamples, size: int = 32) -> dict[str, Tensor]:
    """The task's scores of each example, in the order of the examples."""
    scores: dict[str, Tensor] = {}
    for rows in batches_by_length(examples, size):
        part = task.select(examples, rows)
        logits = model(input_ids=part.tokens.to(model.device)).logits.cpu()
        for name, values in task.scores(logits, part).items():
            scores.setdefault(name, torch.empty(len(examples), dtype=values.dtype))[rows] = values
    return scores
