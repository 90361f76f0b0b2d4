"""RegBench: which models learn regular languages from the context, and from how many examples they learn to."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from tessera.evaluation.loss import loss_by_position
from tessera.models.sizes import num_parameters
from tessera.papers.catalogue import LIBRARY
from tessera.papers.experiment import Experiment, Run, RunContext
from tessera.papers.regbench import RegBench, report
from tessera.papers.regbench.ngram_baseline import ngram_log_probabilities
from tessera.papers.regbench.settings import KERNEL_NAMES, LOSS_BLOCK, MODELS, NGRAM, RegBenchSettings, plan
from tessera.papers.task_stage import small_model
from tessera.tasks.task import Estimate, TokenExamples, estimate
from tessera.training.fit import fit

# Lengths are moved by up to this share before they are sorted, so that the batches of each epoch are others.
JITTER = 0.1
ROWS_AT_ONCE = 32


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train on `num_problems` automata; score the best weights on held-out ones and on their fresh strings."""
    settings, task = run.configuration, RegBench()
    held_out = task.sample(settings.test, 0, "test")
    if settings.model == NGRAM:
        log_probabilities = ngram_log_probabilities(task, held_out, settings.symbols)
        return {"parameters": 0, "held_out": _estimates(task.scores(log_probabilities, held_out))}
    train = task.sample(settings.num_problems, settings.seed)
    validation = task.sample(settings.validation, 0, "validation")
    sizes = {"vocab_size": task.vocab_size, "max_positions": task.max_tokens, "kernel": settings.kernel or "gaussian"}
    model = small_model(settings, settings.model, **sizes).to(context.device)
    batches = Batches(task, train, settings.batch_size, settings.seed)
    training = fit(
        model,
        lambda step: _output(model, batches.at(step)).loss,
        settings.fit,
        context.folder,
        report=context.report,
        validate=lambda: mean_loss(model, task, validation),
    )
    fresh = task.fresh_strings(task.select(train, torch.arange(min(settings.test // 2, len(train)))), seed=1)
    return {
        "parameters": num_parameters(model),
        "epochs": round(training.steps / batches.per_epoch, 2),
        "training": training.outcome(),
        "held_out": _estimates(scores_of(model, task, held_out)),
        "held_out_loss_by_block": loss_by_block(model, held_out, LOSS_BLOCK),
        "in_distribution": _estimates(scores_of(model, task, fresh)),
    }


def _estimates(scores: dict[str, Tensor]) -> dict[str, Estimate]:
    """Mean, standard error and count of each score in per cent."""
    return {name: estimate(100 * values) for name, values in scores.items()}


class Batches:
    """Each epoch takes every problem once, in batches of `size` of similar length, in random order.

    A batch is a function of `seed` and the step. Padding goes to the right, as far as the longest of the batch.
    """

    def __init__(self, task: RegBench, examples: TokenExamples, size: int, seed: int):
        self.task, self.examples, self.size, self.seed = task, examples, min(size, len(examples)), seed
        self.per_epoch = len(examples) // self.size
        self._epoch, self._order = -1, torch.empty(0)

    def at(self, step: int) -> TokenExamples:
        """The problems of a step."""
        epoch, index = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._shuffled(epoch)
        return self.task.select(self.examples, self._order[index])

    def _shuffled(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        lengths = self.examples.details.lengths
        noise = 1 + JITTER * (2 * torch.rand(len(lengths), generator=generator) - 1)
        # What does not fill a batch is left out of an epoch: another part of the problems each time.
        kept = torch.randperm(len(lengths), generator=generator)[: self.per_epoch * self.size]
        order = kept[(lengths * noise)[kept].argsort()].view(self.per_epoch, self.size)
        return order[torch.randperm(self.per_epoch, generator=generator)]


def _output(model: PreTrainedModel, examples: TokenExamples) -> ModelOutput:
    return model(input_ids=examples.tokens.to(model.device), labels=examples.labels.to(model.device))


def _batches(task: RegBench, examples: TokenExamples) -> Iterator[tuple[Tensor, TokenExamples]]:
    """All rows and the examples there, some at a time, shortest first."""
    for rows in examples.details.lengths.argsort(stable=True).split(ROWS_AT_ONCE):
        yield rows, task.select(examples, rows)


@torch.no_grad()
def mean_loss(model: PreTrainedModel, task: RegBench, examples: TokenExamples) -> float:
    """Cross entropy in nats per symbol over all examples."""
    batches = [batch for _, batch in _batches(task, examples)]
    counts = [int((batch.labels >= 0).sum()) for batch in batches]
    return sum(float(_output(model, batch).loss) * count for batch, count in zip(batches, counts)) / sum(counts)


@torch.no_grad()
def scores_of(model: PreTrainedModel, task: RegBench, examples: TokenExamples) -> dict[str, Tensor]:
    """The task's scores of each example, in the order of the examples."""
    scores: dict[str, Tensor] = {}
    for rows, batch in _batches(task, examples):
        for name, values in task.scores(_output(model, batch).logits.cpu(), batch).items():
            scores.setdefault(name, torch.empty(len(examples), dtype=values.dtype))[rows] = values
    return scores


def loss_by_block(model: PreTrainedModel, examples: TokenExamples, block: int, tokens: int = 400) -> list[float]:
    """Cross entropy in nats per symbol over each `block` positions of the first `tokens`; later ones are in few
    problems. As many blocks as hold a label."""
    rows = zip(examples.tokens[:, :tokens], examples.labels[:, :tokens])
    losses = loss_by_position(model, [{"input_ids": row, "labels": labels} for row, labels in rows], batch_size=32)
    pairs = zip(losses.total.split(block), losses.count.split(block))
    return [round(float(total.sum() / count.sum()), 5) for total, count in pairs if count.sum() > 0]


# Sparse Attention as Compact Kernel Regression, table 1; Memory Mosaics, figure 9 and table 3.
EXPERIMENT = Experiment(
    LIBRARY["regbench"],
    settings=RegBenchSettings,
    plan=plan,
    execute=execute,
    tables=report.tables,
    plot=report.plot,
    models=MODELS,
    kernels=KERNEL_NAMES,
    budgets=("smoke", "cpu", "full"),
)
