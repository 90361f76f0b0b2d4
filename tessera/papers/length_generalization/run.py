"""Length generalisation: trained on up to 64 tokens, tested on up to 64 times as many, with every kernel."""

from typing import Any

import torch
from torch import nn

from tessera.base.precision import autocast
from tessera.models.sizes import num_parameters
from tessera.models.small_models import build_small_model
from tessera.papers.catalogue import LIBRARY
from tessera.papers.experiment import Experiment, Run, RunContext, RunSelection
from tessera.papers.length_generalization import figure, report
from tessera.papers.length_generalization.evaluate import evaluate, sharper
from tessera.papers.length_generalization.settings import KERNELS, MODELS, SEEDS, SETTINGS, LengthSettings
from tessera.training.fit import fit


def plan(selection: RunSelection) -> list[Run]:
    """Task by task, the mosaic's kernels first; seeds outside, so that the first seed is complete first."""
    budget, models = selection.budget, selection.models or MODELS
    default = ("triweight",) if budget == "smoke" else tuple(KERNELS)
    kernels = selection.kernels or default
    if selection.kernels is not None and selection.models is None:
        models = ("mosaic",)  # the only one that has kernels
    names = [*(kernels if "mosaic" in models else ()), *(model for model in models if model != "mosaic")]
    seeds = range(selection.seeds or SEEDS[budget])
    return [settings.run(name, seed) for seed in seeds for settings in SETTINGS[budget] for name in names]


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train on examples that are new at every step, then test at every length."""
    settings, device, task = run.configuration, context.device, run.configuration.trained_task
    model = _model(settings).to(device)

    def loss_at(step: int) -> torch.Tensor:
        examples = task.sample(settings.batch_size, settings.seed * 10_000_019 + step)
        with autocast(settings.precision, device):
            return model(input_ids=examples.tokens.to(device), labels=examples.labels.to(device)).loss

    training = fit(model, loss_at, settings.fit, context.folder, report=context.report).outcome()
    outcome: dict[str, Any] = {"training": training, "parameters": num_parameters(model)}
    for factor in settings.factors:
        context.report(1.0, f"testing at {factor:g} x {settings.test_length}")
        outcome.setdefault("scores", {})[f"{factor:g}"] = evaluate(model, settings, factor, device)
    return outcome | sharper(model, settings, outcome["scores"], device)


def _model(settings: LengthSettings) -> nn.Module:
    """The mosaic with its kernel, or a transformer with rotary positions (learned ones end with training)."""
    return build_small_model(
        "transformer_rope" if settings.kernel is None else "mosaic",
        settings.seed,
        vocab_size=settings.trained_task.vocab_size,
        hidden_size=settings.hidden_size,
        num_layers=settings.num_layers,
        num_heads=settings.num_heads,
        kernel=settings.kernel or "gaussian",
        num_persistent_slots=settings.num_persistent_slots,
        dropout=settings.dropout,
        contextual_dropout=settings.contextual_dropout,
        initialization=settings.initialization,
    )


# Sparse Attention as Compact Kernel Regression, tables 2, 6 and 7; the transformer (rotary) is our addition.
EXPERIMENT = Experiment(
    LIBRARY["length_generalization"],
    settings=LengthSettings,
    plan=plan,
    execute=execute,
    tables=report.tables,
    plot=lambda records, path: figure.draw(report.curves(records), path),
    models=MODELS,
    kernels=tuple(KERNELS),
    budgets=("smoke", "cpu", "full"),
)
