"""Length generalisation: trained on up to 64 tokens, tested on up to 64 times as many, with every kernel."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from tessera.base.precision import autocast
from tessera.memories.contextual import ContextualMemory
from tessera.models.sizes import num_parameters
from tessera.papers.catalogue import LIBRARY
from tessera.papers.experiment import Experiment, Run, RunContext, RunSelection
from tessera.papers.length_generalization import report
from tessera.papers.length_generalization.settings import KERNELS, MODELS, SEEDS, SETTINGS, LengthSettings
from tessera.papers.task_stage import held_out_scores, small_model
from tessera.training.fit import fit

SHARPER = 2.0


def plan(selection: RunSelection) -> list[Run]:
    """Task by task, the mosaic's kernels first; seeds outside, so that the first seed is complete first."""
    # The mosaic is the only one that has kernels.
    models = selection.models or (MODELS if selection.kernels is None else ("mosaic",))
    kernels = selection.kernels or (("triweight",) if selection.budget == "smoke" else tuple(KERNELS))
    names = [*(kernels if "mosaic" in models else ()), *(["transformer"] if "transformer" in models else ())]
    seeds = range(selection.seeds or SEEDS[selection.budget])
    return [settings.run(name, seed) for seed in seeds for settings in SETTINGS[selection.budget] for name in names]


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train on examples that are new at every step, then test at every length."""
    settings, device, task = run.configuration, context.device, run.configuration.trained_task
    model = build(settings).to(device)

    def loss_at(step: int) -> Tensor:
        examples = task.sample(settings.batch_size, settings.seed * 10_000_019 + step)
        with autocast(settings.precision, device):
            return model(input_ids=examples.tokens.to(device), labels=examples.labels.to(device)).loss

    training = fit(model, loss_at, settings.fit, context.folder, report=context.report).outcome()
    outcome: dict[str, Any] = {"training": training, "parameters": num_parameters(model)}
    for factor in settings.factors:
        context.report(1.0, f"testing at {factor:g} x {settings.test_length}")
        outcome.setdefault("scores", {})[f"{factor:g}"] = evaluate(model, settings, factor, device)
    return outcome | sharper(model, settings, outcome["scores"], device)


def build(settings: LengthSettings) -> nn.Module:
    """The mosaic with its kernel, or a transformer with rotary positions (learned ones end with training)."""
    name, vocab_size = "transformer_rope" if settings.kernel is None else "mosaic", settings.trained_task.vocab_size
    return small_model(settings, name, vocab_size=vocab_size, kernel=settings.kernel or "gaussian")


def evaluate(model: nn.Module, settings: LengthSettings, factor: float, device: str) -> dict[str, list[float]]:
    """Mean, standard error and count of each score at `factor` times the test length.

    A score that fewer than two examples have is left out.
    """
    task = settings.task_at(factor)
    width = task.sample(1, 0, "test").tokens.shape[1]
    fewest, most = settings.test_examples
    count = max(fewest, min(most, settings.test_tokens // width))
    estimates = held_out_scores(model, task, count, width, device, settings.precision)
    return {name: list(estimate) for name, estimate in estimates.items() if estimate.count > 1}


def sharper(model: nn.Module, settings: LengthSettings, scores: dict[str, Any], device: str) -> dict[str, Any]:
    """The scores with every contextual memory's inverse bandwidth times `SHARPER`, at one length.

    Weight that spreads over more and more pairs can be gathered again by a narrower kernel; a key that fits several
    stored pairs cannot be helped. Tested at the longest length at which half of the symbols are still right.
    """
    memories = [module for module in model.modules() if isinstance(module, ContextualMemory)]
    alive = [factor for factor in settings.factors if scores[f"{factor:g}"]["token_accuracy"][0] > 0.5]
    if not memories or not alive:
        return {}
    with torch.no_grad():
        for memory in memories:
            memory.bandwidth.get_parameter("log_inverse_bandwidth").add_(math.log(SHARPER))
    return {"sharper": {f"{alive[-1]:g}": evaluate(model, settings, alive[-1], device)}}


# Sparse Attention as Compact Kernel Regression, tables 2, 6 and 7; the transformer (rotary) is our addition.
EXPERIMENT = Experiment(
    LIBRARY["length_generalization"],
    settings=LengthSettings,
    plan=plan,
    execute=execute,
    tables=report.tables,
    plot=report.plot,
    models=MODELS,
    kernels=tuple(KERNELS),
    budgets=("smoke", "cpu", "full"),
)
