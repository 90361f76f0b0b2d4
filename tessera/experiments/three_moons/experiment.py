"""Three moons (Memory Mosaics, section 5): one memory of all moons against one memory for each."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tessera.experiments.experiment import EXPERIMENTS, Experiment, Record, Run, RunContext, RunSelection, select_names
from tessera.experiments.three_moons import figure, report
from tessera.experiments.three_moons.continuations import continuation_errors
from tessera.experiments.three_moons.disentangling import INVERSE_BANDWIDTH, weights
from tessera.memories.linear_contextual import LinearContextualMemory
from tessera.models.sizes import num_parameters
from tessera.tasks.three_moons import HELD_OUT, ThreeMoons
from tessera.training.fit import FitOptions, fit

# Heads, whether AdamW corrects the bias of its averages (the published framework's does not), share of the rate.
MODELS = {
    "three_heads": (3, False, 1.0),
    "one_head": (1, False, 1.0),
    "three_heads_corrected": (3, True, 1.0),
    "one_head_corrected": (1, True, 1.0),
    "three_heads_slow": (3, False, 0.3),
}
# A training triple whose common period, like the held-out one's, is twice its longest period.
SEEN = (1.5, 2.0, 3.0)
SECOND_RATE, SECOND_BATCH = 5e-2, 8


@dataclass(frozen=True)
class Setting:
    """One budget: `batch_size` sequences of `length` observations at each of `steps`, and what is evaluated.

    The `second_*` are those of the second round, which is ours (see `ThreeMoonsExperiment`).
    """

    seeds: int
    steps: int = 500
    batch_size: int = 64
    length: int = 800
    learning_rate: float = 1e-2
    sequences: int = 512
    contexts: int = 775
    horizon: int = 25
    second_steps: int = 300
    second_from: int = 200
    second_sequences: int = 64


SETTINGS = {
    "smoke": Setting(
        1, 6, batch_size=4, length=60, sequences=4, contexts=60, horizon=5, second_steps=3, second_from=20
    ),
    "cpu": Setting(seeds=5),
    "full": Setting(seeds=10),
}


class ThreeMoonsExperiment(Experiment):
    """Trains both memories of 54 real parameters as published and continues sequences from every context length.

    The published framework's AdamW leaves the bias of its averages in; the `_corrected` models are trained without it,
    the `_slow` ones at 0.3 of the learning rate.
    The published loss counts the steps at which the memories are nearly empty, and they make most of what remains of
    it. A second round of training (few sequences, a fresh optimizer, the loss from `second_from` observations on) shows
    how much of the error after the first round is owed to them.
    """

    title = "Three moons"
    source = "Memory Mosaics, section 5 and appendix A, figures 4, 5 and 10"
    models = tuple(MODELS)

    def runs(self, selection: RunSelection) -> list[Run]:
        where, setting = "reproduce three_moons", SETTINGS[selection.budget]
        # The others are there for who asks for them: what they answer is about optimizers, not about memories.
        names = select_names(where, "models", self.models, selection.models, self.models[:2])
        select_names(where, "kernels", self.kernels, selection.kernels, ())
        seeds = setting.seeds if selection.seeds is None else selection.seeds
        return [_run(name, seed, setting) for seed in range(seeds) for name in names]

    def execute(self, run: Run, context: RunContext) -> dict[str, Any]:
        configuration = run.configuration
        memory = build(configuration["num_heads"], configuration["seed"])
        first = _round(memory, configuration, "training", context)
        second = _round(memory, {**configuration, **configuration["second_round"]}, "second round", context)
        return {**first, "real_parameters": num_parameters(memory), "second_round": second}

    def table(self, runs: Mapping[str, Record]) -> str:
        return report.table(runs)

    def plot(self, runs: Mapping[str, Record], path: Path) -> None:
        figure.plot(runs, path)


def _round(
    memory: LinearContextualMemory, configuration: dict[str, Any], name: str, context: RunContext
) -> dict[str, Any]:
    """Train further and evaluate."""
    task = ThreeMoons(context=configuration["length"], horizon=1)
    options = FitOptions(**configuration["fit"])
    loss = partial(batch_loss, memory, task, configuration)
    factor = None if configuration["bias_correction"] else partial(uncorrected, options.betas)
    trained = fit(memory, loss, options, context.folder, report=context.report, name=name, rate_factor=factor)
    errors = evaluate(memory, configuration["evaluation"], context)
    return {**trained.outcome(), "weights": weights(memory), "errors": errors}


def _run(name: str, seed: int, setting: Setting) -> Run:
    heads, corrected, share = MODELS[name]
    options = FitOptions(setting.steps, setting.learning_rate * share, 5e-6, warmup_ratio=0.0, decay="linear")
    second = FitOptions(setting.second_steps, SECOND_RATE, 5e-6, warmup_ratio=0.0, decay="linear")
    evaluation = {
        "sequences": setting.sequences,
        "contexts": setting.contexts,
        "horizon": setting.horizon,
        "triples": {"training": list(SEEN), "held out": list(HELD_OUT[0])},
    }
    configuration = {
        "num_heads": heads,
        "seed": seed,
        "batch_size": setting.batch_size,
        "length": setting.length,
        "inverse_bandwidth": INVERSE_BANDWIDTH,
        "loss_from": 0,
        "first_step": 0,
        "fit": asdict(options),
        "bias_correction": corrected,
        "evaluation": evaluation,
        "second_round": {
            "batch_size": SECOND_BATCH,
            "loss_from": setting.second_from,
            "first_step": setting.steps,
            "fit": asdict(second),
            "evaluation": {**evaluation, "sequences": min(setting.sequences, setting.second_sequences)},
        },
    }
    return Run(f"{name}/seed {seed}", configuration, cost=2.5 if heads == 3 else 1.0)


def build(heads: int, seed: int) -> LinearContextualMemory:
    """A memory of `heads` heads that share three complex dimensions; `seed` decides its first weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # Narrow heads: PyTorch's fused attention is several times slower on CPUs.
        return LinearContextualMemory(6, heads, 6 // heads, inverse_bandwidth=INVERSE_BANDWIDTH, backend="chunked")


def batch_loss(memory: LinearContextualMemory, task: ThreeMoons, configuration: dict[str, Any], step: int) -> Tensor:
    """`mean(clip(z_T - x_{T+1}, -1/2, 1/2)^2)` over the positions T > `loss_from` of the sequences of one step.

    Clipped, because an almost empty memory cannot predict and training must not try.
    """
    place = configuration["seed"] * 1_000_000 + configuration["first_step"] + step
    examples = task.sample(configuration["batch_size"], place)
    x = torch.cat([examples.observations, examples.future], 1)
    predictions, _ = memory(x[:, :-1])
    error = (predictions - x[:, 1:])[:, configuration["loss_from"] :]
    return error.clamp(-0.5, 0.5).square().mean()


def uncorrected(betas: tuple[float, float], step: int) -> float:
    """The factor of the learning rate that makes AdamW one without bias correction.

    The published code's framework corrects no bias unless asked to, and it was not: its first steps are up to 6.6
    times as long as those of the same learning rate in PyTorch, and twice as long after 300 steps.
    """
    first, second = (1 - beta ** (step + 1) for beta in betas)
    return first / second**0.5


def evaluate(memory: LinearContextualMemory, options: dict[str, Any], context: RunContext) -> dict[str, dict[str, Any]]:
    """Of each triple the mean error after every context length, and its standard error over sequences."""
    found = {}
    for place, (words, periods) in enumerate(options["triples"].items()):
        context.report(1.0, f"evaluation, {words} triple")
        task = ThreeMoons(options["contexts"], options["horizon"], tuple(periods))
        examples = task.sample(options["sequences"], 0, "train" if place == 0 else "test")
        x = torch.cat([examples.observations, examples.future], 1)
        errors = continuation_errors(memory, x, options["horizon"]).double()
        mean = errors.mean(0)
        found[words] = {
            "periods": periods,
            "mean": [round(value, 5) for value in mean.tolist()],
            "standard_error": [round(value, 5) for value in (errors.std(0) / len(errors) ** 0.5).tolist()],
        }
    return found


EXPERIMENTS.add("three_moons", ThreeMoonsExperiment())
