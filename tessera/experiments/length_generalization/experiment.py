"""Length generalisation: trained on up to 64 tokens, tested on up to 64 times as many, with every kernel."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tessera.experiments.experiment import EXPERIMENTS, Experiment, Record, Run, RunContext, RunSelection, select_names
from tessera.experiments.length_generalization.evaluate import evaluate, sharper
from tessera.experiments.length_generalization.settings import SEEDS, SETTINGS, Setting
from tessera.experiments.length_generalization.table import curves, table
from tessera.models.precision import autocast
from tessera.models.sizes import num_parameters
from tessera.models.small_models import build_small_model
from tessera.training.fit import fit

KERNELS: dict[str, Any] = {
    "gaussian": "gaussian",
    "sparsemax": "sparsemax",
    "biweight": "biweight",
    "triweight": "triweight",
    "gaussian_knn_32": {"name": "knn", "base": "gaussian", "k": 32},
    "relumax": "relumax",
    "normalized_relu": "normalized_relu",
    "gaussian_knn_16": {"name": "knn", "base": "gaussian", "k": 16},
    "uniform_knn_16": {"name": "knn", "base": "uniform", "k": 16},
    "uniform_knn_32": {"name": "knn", "base": "uniform", "k": 32},
}
MODELS = ("mosaic", "transformer")


class LengthGeneralization(Experiment):
    """Sparse Attention as Compact Kernel Regression, tables 2, 6 and 7; the transformer (rotary) is our addition."""

    title = "Length generalisation: MQMTAR, sort, reverse"
    source = "Sparse Attention as Compact Kernel Regression, section 4.3, tables 2, 6 and 7"
    models = MODELS
    kernels = tuple(KERNELS)

    def runs(self, selection: RunSelection) -> list[Run]:
        """Task by task, the mosaic's kernels first; seeds outside, so that the first seed is complete first."""
        models = select_names("length_generalization", "models", MODELS, selection.models, MODELS)
        budget = ("triweight",) if selection.budget == "smoke" else tuple(KERNELS)
        kernels = select_names("length_generalization", "kernels", tuple(KERNELS), selection.kernels, budget)
        if selection.kernels is not None and selection.models is None:
            models = ["mosaic"]  # the only one that has kernels
        names = [*(kernels if "mosaic" in models else ()), *(model for model in models if model != "mosaic")]
        seeds = range(selection.seeds or SEEDS[selection.budget])
        settings = SETTINGS[selection.budget]
        return [self._run(name, task, settings[task], seed) for seed in seeds for task in settings for name in names]

    @staticmethod
    def _run(name: str, task: str, setting: Setting, seed: int) -> Run:
        configuration = {
            "task": task,
            "model": "mosaic" if name in KERNELS else name,
            "kernel": KERNELS.get(name),
            "name": name,
            "seed": seed,
            "setting": asdict(setting),
        }
        tokens = setting.options.steps * setting.batch_size * 3 * setting.task.length
        return Run(
            f"{task}/{name}/seed {seed}", configuration, float(tokens * setting.num_layers * setting.hidden_size)
        )

    def execute(self, run: Run, context: RunContext) -> dict[str, Any]:
        """Train on examples that are new at every step, then test at every length."""
        setting, seed, device = _setting_of(run), run.configuration["seed"], context.device
        model = _model(run, setting).to(device)

        def loss_at(step: int) -> torch.Tensor:
            examples = setting.task.sample(setting.batch_size, seed * 10_000_019 + step)
            with autocast(setting.precision, device):
                return model(input_ids=examples.tokens.to(device), labels=examples.labels.to(device)).loss

        training = fit(model, loss_at, setting.options, context.folder, report=context.report).outcome()
        outcome = {"training": training, "parameters": num_parameters(model)}
        for factor in setting.factors:
            context.report(1.0, f"testing at {factor} x {setting.test_length}")
            outcome.setdefault("scores", {})[f"{factor:g}"] = evaluate(model, setting, factor, device)
        return outcome | sharper(model, setting, outcome["scores"], device)

    def table(self, runs: Mapping[str, Record]) -> str:
        """Ours and the paper's, task by task."""
        return table(runs)

    def plot(self, runs: Mapping[str, Record], path: Path) -> None:
        """Exact match against length."""
        from tessera.experiments.length_generalization.figure import draw

        draw(curves(runs), path)


EXPERIMENTS.add("length_generalization", LengthGeneralization())


def _setting_of(run: Run) -> Setting:
    """The setting that a run was made from (a configuration is JSON, a setting holds objects)."""
    task, given = run.configuration["task"], run.configuration["setting"]
    settings = (budget[task] for budget in SETTINGS.values() if task in budget)
    return next(setting for setting in settings if asdict(setting) == given)


def _model(run: Run, setting: Setting) -> nn.Module:
    """The mosaic with the kernel asked for, or a transformer with rotary positions (learned ones end with training)."""
    is_mosaic = run.configuration["model"] == "mosaic"
    return build_small_model(
        "mosaic" if is_mosaic else "transformer_rope",
        run.configuration["seed"],
        vocab_size=setting.task.vocab_size,
        hidden_size=setting.hidden_size,
        num_layers=setting.num_layers,
        num_heads=setting.num_heads,
        kernel=run.configuration["kernel"] or "gaussian",
        num_persistent_slots=setting.num_persistent_slots,
    )
