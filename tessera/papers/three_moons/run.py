"""Three moons (Memory Mosaics, section 5): one memory of all moons against one memory for each."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from tessera.memories.linear_contextual import LinearContextualMemory
from tessera.models.sizes import num_parameters
from tessera.papers.catalogue import LIBRARY
from tessera.papers.experiment import Experiment, Run, RunContext, RunSelection
from tessera.papers.three_moons import report
from tessera.papers.three_moons.continuations import continuation_errors, repetition_errors
from tessera.papers.three_moons.disentangling import layers, weights
from tessera.papers.three_moons.settings import BUDGETS, DEFAULT, SEEDS, VARIANTS, Evaluation, MoonSettings, Round
from tessera.papers.three_moons.task import TRAINING, ThreeMoons
from tessera.training.fit import fit


def plan(selection: RunSelection) -> list[Run]:
    """Seed by seed; what is not trained has one."""
    budget, seeds = BUDGETS[selection.budget], range(selection.seeds or SEEDS[selection.budget])
    runs = [budget.run(name, seed) for seed in seeds for name in selection.models or DEFAULT]
    return [run for run in runs if run.configuration.seed == 0 or run.configuration.first_round.fit]


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Both rounds of training, each evaluated."""
    settings = run.configuration
    memory = build(settings) if settings.num_heads else None
    outcome = {"first_round": _round(memory, settings, settings.first_round, "training", context)}
    if settings.second_round:
        outcome["second_round"] = _round(memory, settings, settings.second_round, "second round", context)
    trained = [layer for layer in layers(memory).values() if layer.weight.requires_grad] if memory else []
    return {**outcome, "real_parameters": sum(map(num_parameters, trained))}


def _round(
    memory: LinearContextualMemory | None, settings: MoonSettings, training: Round, name: str, context: RunContext
) -> dict[str, Any]:
    """Train further, and evaluate."""
    outcome: dict[str, Any] = {}
    if training.fit:
        assert memory is not None, "repeating the last observation is not trained"
        loss = partial(batch_loss, memory, ThreeMoons(context=settings.length, horizon=1), settings, training)
        options: dict[str, Any] = {"report": context.report, "name": name}
        if not settings.bias_correction:
            options["rate_factor"] = partial(uncorrected, training.fit.betas)
        trained = fit(memory, loss, training.fit, context.folder, **options)
        outcome = trained.outcome()
    if memory is not None:
        outcome["weights"] = weights(memory)
    return {**outcome, "errors": evaluate(memory, training.evaluation, context)}


def build(settings: MoonSettings) -> LinearContextualMemory:
    """A memory whose heads share three complex dimensions; `seed` decides its first weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        memory = LinearContextualMemory(
            6,
            settings.num_heads,
            6 // settings.num_heads,
            complex_numbers=settings.is_complex,
            inverse_bandwidth=settings.inverse_bandwidth,
            backend="chunked",  # narrow heads: PyTorch's fused attention is several times slower on CPUs
        )
    for name in settings.identity:
        weight = layers(memory)[name].weight.requires_grad_(False)
        weight.copy_(torch.eye(len(weight)))
    return memory


def batch_loss(
    memory: LinearContextualMemory, task: ThreeMoons, settings: MoonSettings, part: Round, step: int
) -> Tensor:
    """`mean(clip(z_T - x_{T+1}, -clip, clip)^2)` over the positions T > `loss_from` of the sequences of one step.

    Clipped, because an almost empty memory cannot predict and training must not try.
    """
    examples = task.sample(part.batch_size, settings.seed * 1_000_000 + part.first_step + step)
    x = torch.cat([examples.observations, examples.future], 1)
    predictions, _ = memory(x[:, :-1])
    error = (predictions - x[:, 1:])[:, part.loss_from :]
    return (error if settings.clip is None else error.clamp(-settings.clip, settings.clip)).square().mean()


def uncorrected(betas: tuple[float, float], step: int) -> float:
    """The factor of the learning rate that makes AdamW one without bias correction.

    The published code's framework corrects no bias unless asked to, and it was not: its first steps are up to 6.6
    times as long as those of the same learning rate in PyTorch, and twice as long after 300 steps.
    """
    first, second = (1 - beta ** (step + 1) for beta in betas)
    return first / second**0.5


def evaluate(
    memory: LinearContextualMemory | None, evaluation: Evaluation, context: RunContext
) -> dict[str, dict[str, Any]]:
    """Of each triple the mean error after every context length, and its standard error over sequences.

    None repeats the last observation.
    """
    errors_of = {}
    for name, periods in evaluation.triples.items():
        context.report(1.0, f"evaluation, {name} triple")
        first, second, third = periods  # a list, where they were stored
        task = ThreeMoons(evaluation.contexts, evaluation.horizon, (first, second, third))
        examples = task.sample(evaluation.sequences, 0, "train" if tuple(periods) in TRAINING else "test")
        x = torch.cat([examples.observations, examples.future], 1)
        measure = repetition_errors if memory is None else partial(continuation_errors, memory)
        errors = measure(x, evaluation.horizon).double()
        errors_of[name] = {
            "periods": periods,
            "mean": [round(value, 5) for value in errors.mean(0).tolist()],
            "standard_error": [round(value, 5) for value in (errors.std(0) / len(errors) ** 0.5).tolist()],
        }
    return errors_of


PUBLISHED = "The first round of --budget cpu is the published training."
EXPERIMENT = Experiment(
    LIBRARY["three_moons"], MoonSettings, plan, execute, report.tables, report.plot, tuple(VARIANTS), (), PUBLISHED
)
