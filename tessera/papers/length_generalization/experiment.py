"""Length generalisation: trained on up to 64 tokens, tested on up to 64 times as many, with every kernel."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tessera.base.precision import autocast
from tessera.models.sizes import num_parameters
from tessera.models.small_models import build_small_model
from tessera.papers.experiment import EXPERIMENTS, Experiment, Record, Run, RunContext, RunSelection, select_names
from tessera.papers.length_generalization import figure, report
from tessera.papers.length_generalization.evaluate import evaluate, sharper
from tessera.papers.length_generalization.settings import KERNELS, MODELS, SEEDS, SETTINGS, LengthSettings
from tessera.training.fit import fit


class LengthGeneralization(Experiment):
    """Sparse Attention as Compact Kernel Regression, tables 2, 6 and 7; the transformer (rotary) is our addition."""

    title = "Length generalisation: MQMTAR, sort, reverse"
    source = "Sparse Attention as Compact Kernel Regression, section 4.3, tables 2, 6 and 7"
    settings = LengthSettings
    models = MODELS
    kernels = tuple(KERNELS)

    def runs(self, selection: RunSelection) -> list[Run]:
        """Task by task, the mosaic's kernels first; seeds outside, so that the first seed is complete first."""
        where, budget = "reproduce length_generalization", selection.budget
        models = select_names(where, "models", MODELS, selection.models, MODELS)
        default = ("triweight",) if budget == "smoke" else tuple(KERNELS)
        kernels = select_names(where, "kernels", tuple(KERNELS), selection.kernels, default)
        if selection.kernels is not None and selection.models is None:
            models = ["mosaic"]  # the only one that has kernels
        names = [*(kernels if "mosaic" in models else ()), *(model for model in models if model != "mosaic")]
        seeds = range(selection.seeds or SEEDS[budget])
        return [settings.run(name, seed) for seed in seeds for settings in SETTINGS[budget] for name in names]

    def execute(self, run: Run, context: RunContext) -> dict[str, Any]:
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

    def tables(self, records: Mapping[str, Record]) -> dict[str, str]:
        """See `report.py`."""
        return report.tables(records)

    def plot(self, records: Mapping[str, Record], path: Path) -> None:
        """See `figure.py`."""
        figure.draw(report.curves(records), path)


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


EXPERIMENTS.add("length_generalization", LengthGeneralization())
