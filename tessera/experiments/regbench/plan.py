"""Which runs a budget of RegBench has, in which order."""

from dataclasses import asdict, replace
from itertools import product
from typing import Any

from tessera.experiments.experiment import Run, RunSelection, select_names
from tessera.experiments.regbench.figure import COUNTING
from tessera.experiments.regbench.published import SEARCH_GRID, SPARSE_SIZES
from tessera.experiments.regbench.settings import FULL, LONGER, LONGEST, SEEDS, SETTINGS, SIZES, Setting
from tessera.kernels import kernel_names

MOSAICS = ("mosaic", "mosaic_v2")
MODELS = (*MOSAICS, "transformer", "lstm", "mamba")
HEADLESS = ("lstm", "mamba")
CONTEXTS = (0, 1, 2, 3)
KERNELS = (
    "gaussian",
    "sparsemax",
    "biweight",
    "triweight",
    "relumax",
    "normalized_relu",
    "gaussian_knn",
    "uniform_knn",
)


def runs_of(selection: RunSelection) -> list[Run]:
    """The runs of a selection, the most telling first."""
    where, budget = "reproduce regbench", selection.budget
    models = select_names(where, "models", (*MODELS, COUNTING), selection.models, _default_models(budget))
    kernels = select_names(where, "kernels", tuple(kernel_names()), selection.kernels, ())
    pairs = [(model, kernel) for model in models if model != COUNTING for kernel in _kernels(model, kernels, budget)]
    yardstick = [_counts(SETTINGS[budget], symbols) for symbols in CONTEXTS if COUNTING in models]
    if budget != "full":
        setting, problems, seeds = (
            SETTINGS[budget],
            SIZES[budget],
            selection.seeds or SEEDS[budget],
        )
        short = [_run(setting, *pair, problems, seed) for seed, pair in product(range(seeds), pairs)]
        return yardstick + short + (longer_runs(pairs, seeds) if budget == "cpu" else [])
    order = product((100, *SPARSE_SIZES), range(selection.seeds or 1), pairs)
    return yardstick + [
        _run(setting, *pair, problems, seed, searched=True)
        for problems, seed, pair in order
        for setting in _searched(*pair)
    ]


def longer_runs(pairs: list[tuple[str, str]], seeds: int) -> list[Run]:
    """Trainings of equal length on more and on less data: what the short ones leave to be learned."""
    order = [*product(range(seeds), LONGER.items(), pairs)]
    order += [(0, item, ("transformer", "")) for item in LONGEST.items() if ("transformer", "") in pairs]
    return [
        _run(setting, *pair, problems, seed, label=f"{setting.epochs} epochs")
        for seed, (problems, setting), pair in order
    ]


def _counts(setting: Setting, symbols: int) -> Run:
    """Counting what followed the last `symbols` symbols: what a model can reach that looks no further back."""
    run = _run(setting, COUNTING, "", 0, 0, label=f"{symbols} symbol{'s' * (symbols != 1)} of context")
    return replace(run, configuration={**run.configuration, "symbols": symbols})


def _default_models(budget: str) -> tuple[str, ...]:
    return (COUNTING, "mosaic", "transformer") if budget == "cpu" else (COUNTING, *MODELS)


def _kernels(model: str, asked: list[str], budget: str) -> list[str]:
    if model not in MOSAICS:
        return [""]
    if asked:
        return asked
    return list(KERNELS) if model == "mosaic" and budget != "smoke" else ["gaussian"]


def _searched(model: str, kernel: str) -> list[Setting]:
    """The published grid; other kernels take what the search found for the Gaussian one."""
    if model == "mosaic" and kernel != "gaussian":
        return [FULL]
    grid = [dict(zip(SEARCH_GRID, values, strict=True)) for values in product(*SEARCH_GRID.values())]
    points = [Setting(**point) for point in grid if point["hidden_size"] % point["num_heads"] == 0]
    return [point for point in points if model not in HEADLESS or point.num_heads == FULL.num_heads]


def _run(
    setting: Setting, model: str, kernel: str, problems: int, seed: int, searched: bool = False, label: str = ""
) -> Run:
    name = f"{model} {kernel}".strip() + (f", {label}" if label else "")
    grid = (
        f"{setting.num_layers} layers, {setting.num_heads} heads, width {setting.hidden_size}, "
        f"decay {setting.weight_decay}/"
    )
    options = setting.options(max(1, problems))
    configuration: dict[str, Any] = {
        "model": model,
        "kernel": kernel,
        "problems": problems,
        "seed": seed,
        **asdict(setting),
        "fit": asdict(options),
    }
    if label:
        configuration["label"] = label
    slow = 2.0 if "knn" in kernel else 1.0
    cost = slow * options.steps * setting.batch_size * setting.hidden_size * setting.num_layers
    return Run(f"{name}/{problems}/{grid * searched}seed {seed}", configuration, float(cost))
