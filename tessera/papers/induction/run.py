"""Induction: which models of one and two blocks say again what followed a trigger.

Memory Mosaics, section 3: one layer of memories is enough, a transformer needs two layers of attention.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tessera.models.sizes import num_parameters
from tessera.models.small_models import build_small_model
from tessera.papers.experiment import Run, RunContext, RunSelection
from tessera.papers.induction import Induction
from tessera.tasks.task import TokenExamples, estimate
from tessera.training.fit import FitOptions, fit

# Name: model of `MODELS`, blocks, name in tables and figures.
MODELS = {
    "mosaic-1": ("mosaic", 1, "Memory Mosaic, 1 block"),
    "transformer-1": ("transformer", 1, "transformer, absolute positions, 1 block"),
    "transformer_rope-1": ("transformer_rope", 1, "transformer, rotary positions, 1 block"),
    "transformer-2": ("transformer", 2, "transformer, absolute positions, 2 blocks"),
    "transformer_rope-2": ("transformer_rope", 2, "transformer, rotary positions, 2 blocks"),
}


@dataclass(frozen=True)
class InductionSettings:
    """One training and its test.

    Attributes:
        model: one of `MODELS`. hidden_size, num_heads: of the model. task: of training, validation and test.
        batch_size, fit: of the training. validation, test: sequences.
    """

    model: str
    seed: int
    hidden_size: int
    num_heads: int
    task: Induction
    batch_size: int
    fit: FitOptions
    validation: int = 128
    test: int = 1000


_FIT = FitOptions(
    1500, 3e-3, warmup_ratio=0.05, weight_decay=0.1, betas=(0.9, 0.95), clip=1.0, scalar_learning_rate_scale=10.0,
    evaluate_every=50,
)  # fmt: skip
BUDGETS = {
    "smoke": InductionSettings(
        "mosaic-1", 0, 16, 2, Induction(16), 8, replace(_FIT, steps=8, evaluate_every=4), validation=8, test=16
    ),
    "cpu": InductionSettings("mosaic-1", 0, 64, 4, Induction(64), 32, _FIT),
}
SEEDS = {"smoke": 1, "cpu": 3}


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
