"""RegBench: which models learn regular languages from the context, and from how many examples they learn to."""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tessera.models.sizes import num_parameters
from tessera.models.small_models import build_small_model
from tessera.papers.catalogue import LIBRARY
from tessera.papers.experiment import Experiment, Run, RunContext, RunSelection
from tessera.papers.regbench import RegBench, figure, report
from tessera.papers.regbench.batches import Batches, loss_by_block, mean_loss, scores_of
from tessera.papers.regbench.ngram_baseline import ngram_log_probabilities
from tessera.papers.regbench.settings import KERNEL_NAMES, LOSS_BLOCK, MODELS, NGRAM, RegBenchSettings, runs_of
from tessera.tasks.task import Estimate, estimate
from tessera.training.fit import fit


def plan(selection: RunSelection) -> list[Run]:
    """All kernels and the transformer at 1,000 problems first, then other seeds, then more problems."""
    return runs_of(selection)


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train on `num_problems` automata; score the best weights on held-out ones and on their fresh strings."""
    settings, task = run.configuration, RegBench()
    held_out = task.sample(settings.test, 0, "test")
    if settings.model == NGRAM:
        log_probabilities = ngram_log_probabilities(task, held_out, settings.symbols)
        return {"parameters": 0, "held_out": _estimates(task.scores(log_probabilities, held_out))}
    train = task.sample(settings.num_problems, settings.seed)
    validation = task.sample(settings.validation, 0, "validation")
    model = _model(settings, task).to(context.device)
    batches = Batches(train, settings.batch_size, settings.seed, context.device)
    training = fit(
        model,
        lambda step: model(**batches.at(step)).loss,
        settings.fit,
        context.folder,
        report=context.report,
        validate=lambda: mean_loss(model, validation),
    )
    rows = torch.arange(min(settings.test // 2, len(train)))
    return {
        "parameters": num_parameters(model),
        "epochs": round(training.steps / batches.per_epoch, 2),
        "training": training.outcome(),
        "held_out": _estimates(scores_of(model, task, held_out)),
        "held_out_loss_by_block": loss_by_block(model, held_out, LOSS_BLOCK),
        "in_distribution": _estimates(scores_of(model, task, task.fresh_strings(task.select(train, rows), seed=1))),
    }


def _model(settings: RegBenchSettings, task: RegBench) -> PreTrainedModel:
    return build_small_model(
        settings.model,
        settings.seed,
        vocab_size=task.vocab_size,
        hidden_size=settings.hidden_size,
        num_layers=settings.num_layers,
        num_heads=settings.num_heads,
        kernel=settings.kernel or "gaussian",
        max_positions=task.max_tokens,
        dropout=settings.dropout,
        initialization=settings.initialization,
    )


def _estimates(scores: dict[str, Tensor]) -> dict[str, Estimate]:
    """Mean, standard error and count of each score in per cent."""
    return {name: estimate(100 * values) for name, values in scores.items()}


# Sparse Attention as Compact Kernel Regression, table 1; Memory Mosaics, figure 9 and table 3.
EXPERIMENT = Experiment(
    LIBRARY["regbench"],
    settings=RegBenchSettings,
    plan=plan,
    execute=execute,
    tables=report.tables,
    plot=lambda records, path: figure.draw(report.longest_trainings(records), path),
    models=MODELS,
    kernels=KERNEL_NAMES,
    budgets=("smoke", "cpu", "full"),
)
