"""Induction: which models of one and two blocks say again what followed a trigger.

Memory Mosaics, section 3: one layer of memories is enough, a transformer needs two layers of attention.
"""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tessera.models.sizes import num_parameters
from tessera.models.small_models import build_small_model
from tessera.papers.catalogue import LIBRARY
from tessera.papers.experiment import Experiment, Run, RunContext, RunSelection
from tessera.papers.induction import Induction, report
from tessera.papers.induction.settings import BUDGETS, MODELS, SEEDS, InductionSettings
from tessera.tasks.task import TokenExamples, estimate
from tessera.training.fit import fit

SCORED_AT_ONCE = 128  # sequences


def plan(selection: RunSelection) -> list[Run]:
    """Every model, seed by seed."""
    seeds = range(selection.seeds or SEEDS[selection.budget])
    names = [(name, seed) for seed in seeds for name in selection.models or MODELS]
    return [
        Run(f"{name}/seed {seed}", replace(BUDGETS[selection.budget], model=name, seed=seed), 1.0 + MODELS[name][1])
        for name, seed in names
    ]


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train on sequences drawn for each step; test the best weights on others."""
    settings, task = run.configuration, run.configuration.task
    model = build(settings).to(context.device)
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


def build(settings: InductionSettings) -> PreTrainedModel:
    """The model before its training."""
    kind, num_layers, _ = MODELS[settings.model]
    return build_small_model(
        kind,
        settings.seed,
        vocab_size=settings.task.vocab_size,
        hidden_size=settings.hidden_size,
        num_layers=num_layers,
        num_heads=settings.num_heads,
        max_positions=settings.task.length,
    )


@torch.no_grad()
def scores_of(model: PreTrainedModel, task: Induction, examples: TokenExamples) -> dict[str, Tensor]:
    """The task's scores of each example (B,)."""
    rows = examples.tokens.to(model.device).split(SCORED_AT_ONCE)
    return task.scores(torch.cat([model(input_ids=tokens).logits.cpu() for tokens in rows]), examples)


EXPERIMENT = Experiment(
    LIBRARY["induction"], InductionSettings, plan, execute, report.tables, report.plot, tuple(MODELS)
)
