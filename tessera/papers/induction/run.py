"""Induction: which models of one and two blocks say again what followed a trigger."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tessera.models.sizes import num_parameters
from tessera.models.small_models import build_small_model
from tessera.papers.catalogue import LIBRARY
from tessera.papers.experiment import Experiment, Run, RunContext, RunSelection
from tessera.papers.induction import Induction, figure, report
from tessera.papers.induction.settings import BUDGETS, MODELS, InductionSettings
from tessera.tasks.task import TokenExamples, estimate
from tessera.training.fit import fit

# Sequences that are scored at once.
SCORED_AT_ONCE = 128


def plan(selection: RunSelection) -> list[Run]:
    """Every model, seed by seed."""
    budget = BUDGETS[selection.budget]
    names = selection.models or MODELS
    return [budget.run(name, seed) for seed in range(selection.seeds or budget.seeds) for name in names]


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train on sequences drawn for each step; test the best weights on others."""
    settings, task = run.configuration, run.configuration.task
    model = _model(settings).to(context.device)
    validation = task.sample(settings.validation, 0, "validation")

    def loss_at(step: int) -> Tensor:
        batch = task.sample(settings.batch_size, settings.seed * 10_000_000 + step)
        return model(input_ids=batch.tokens.to(context.device), labels=batch.labels.to(context.device)).loss

    def error() -> float:
        return 1 - estimate(scores_of(model, task, validation)["accuracy"]).mean

    training = fit(model, loss_at, settings.fit, context.folder, report=context.report, validate=error)
    scores = scores_of(model, task, task.sample(settings.test, 0, "test"))
    return {
        "parameters": num_parameters(model),
        "training": training.outcome(),
        "scores": {name: estimate(values) for name, values in scores.items()},
    }


def _model(settings: InductionSettings) -> PreTrainedModel:
    return build_small_model(
        MODELS[settings.model][0],
        settings.seed,
        vocab_size=settings.task.vocab_size,
        hidden_size=settings.hidden_size,
        num_layers=settings.num_layers,
        num_heads=settings.num_heads,
        max_positions=settings.task.length,
    )


@torch.no_grad()
def scores_of(model: PreTrainedModel, task: Induction, examples: TokenExamples) -> dict[str, Tensor]:
    """The task's scores of each example (B,)."""
    parts = [task.scores(model(input_ids=one.tokens.to(model.device)).logits, one) for one in _parts(task, examples)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _parts(task: Induction, examples: TokenExamples) -> Iterator[TokenExamples]:
    for rows in torch.arange(len(examples)).split(SCORED_AT_ONCE):
        yield task.select(examples, rows)


# Memory Mosaics, section 3: one layer of memories is enough, a transformer needs two layers of attention.
EXPERIMENT = Experiment(
    LIBRARY["induction"],
    settings=InductionSettings,
    plan=plan,
    execute=execute,
    tables=report.tables,
    plot=figure.draw,
    models=tuple(MODELS),
)
