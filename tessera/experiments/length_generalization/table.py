"""The tables: ours beside the paper's, and what was reduced."""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import torch

from tessera.experiments.experiment import Record
from tessera.experiments.length_generalization import published
from tessera.experiments.length_generalization.findings import TITLES, WORDS, ambiguities, failures
from tessera.tasks.task import estimate

SYMBOLS = {"mqmtar": 256, "sort": 32, "reverse": 32}


class Point(NamedTuple):
    """Exact match at one length: mean over seeds, its standard error (one seed: over examples), the best seed."""

    mean: float
    error: float
    best: float
    seeds: int


def curves(runs: Mapping[str, Record]) -> dict[str, dict[str, dict[float, Point]]]:
    """Task -> name -> factor -> exact match."""
    found: dict = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for record in runs.values():
        task, name = record.configuration["task"], record.configuration["name"]
        for factor, scores in record.outcome["scores"].items():
            found[task][name][float(factor)].append(scores["exact_match"])
    order = [(task, name) for task in TITLES for name in WORDS if name in found[task]]
    result: dict = {}
    for task, name in order:
        points = {factor: _point(scores) for factor, scores in sorted(found[task][name].items())}
        result.setdefault(task, {})[name] = points
    return result


def _point(scores: list[list[float]]) -> Point:
    means = torch.tensor([mean for mean, _, _ in scores], dtype=torch.float64)
    over_seeds = estimate(means)
    error = scores[0][1] if len(scores) == 1 else over_seeds.standard_error
    return Point(over_seeds.mean, error, means.max().item(), len(scores))


def table(runs: Mapping[str, Record]) -> str:
    """One table for each task."""
    parts = []
    for task, names in curves(runs).items():
        factors = sorted({factor for points in names.values() for factor in points})
        parts += [f"**{TITLES[task]}**: {_setting(runs, task)}", "", *_rows(task, names, factors), ""]
    parts += [*failures(runs), *ambiguities(runs)]
    return "\n".join([*parts, NOTE])


NOTE = (
    "Exact match: ours ± standard error (over test examples with one seed, else over seeds), *the paper's mean over "
    "three seeds (best seed)* at the published size. 1x is the longest source of training; tests vary no length. "
    "Half at: the length at which a curve falls below 1/2, ours and *of the paper's means*. Two kernels can "
    "learn late: under normalised ReLU a query that is near no stored pair gets the plain average of all, which has no "
    "gradient, and uniform kNN has no gradient of its weights at all."
)


def _setting(runs: Mapping[str, Record], task: str) -> str:
    """What was trained, and in brackets what the paper trained."""
    record = next(record for record in runs.values() if record.configuration["task"] == task)
    setting, options = record.configuration["setting"], record.configuration["setting"]["options"]
    rule, width, slots = setting["task"], setting["hidden_size"], setting["num_persistent_slots"]
    shortest, longest = rule["length"] - rule["spread"], rule["length"] + rule["spread"]
    task = _published_task(task)
    examples, symbols = options["steps"] * setting["batch_size"], SYMBOLS[task]
    queries = f" {rule['num_queries']} queries (4)," if task == "mqmtar" else ""
    return (
        f"{setting['num_layers']} layers ({published.DEPTH[task]}) of width {width} ({published.WIDTH}) with "
        f"{setting['num_heads']} heads ({published.HEADS}), {slots or 'no'} persistent slots; {examples:,} examples "
        f"({published.EXAMPLES[task]:,}) of {shortest} to {longest} source tokens (32 to 64),{queries} "
        f"{rule['num_symbols']} symbols ({symbols}); {options['steps']:,} steps of {setting['batch_size']} "
        f"({published.BATCH}), peak learning rate {options['learning_rate']:g} ({published.LEARNING_RATE:g}); "
        f"1x is {setting['test_length']} source tokens ({published.TEST_LENGTH}). In brackets: the paper's setting."
    )


def _rows(task: str, names: Mapping[str, Mapping[float, Point]], factors: list[float]) -> list[str]:
    rows = ["| kernel | seeds |" + "".join(f" {factor:g}x |" for factor in factors) + " half at |"]
    rows.append("|---|---|" + "---|" * (len(factors) + 1))
    for name, points in names.items():
        seeds = max(point.seeds for point in points.values())
        paper = {factor: _published(task, name, factor) for factor in factors}
        cells = [_cell(points.get(factor), paper[factor]) for factor in factors]
        known = {factor: numbers[0] for factor, numbers in paper.items() if numbers is not None}
        ours = half({factor: point.mean for factor, point in points.items()})
        cells.append(f"{ours} *{half(known)}*" if len(known) > 1 else ours)
        rows.append(f"| {WORDS[name]} | {seeds} | " + " | ".join(cells) + " |")
    return rows


def half(means: Mapping[float, float]) -> str:
    """The length factor at which a curve first falls below 1/2, linear between the logarithms of its lengths."""
    before: tuple[float, float] | None = None
    for factor, mean in sorted(means.items()):
        if mean < 0.5:
            if before is None:
                return f"< {factor:g}x"
            share = (before[1] - 0.5) / (before[1] - mean)
            return f"{before[0] * (factor / before[0]) ** share:.3g}x"
        before = (factor, mean)
    return f"> {before[0]:g}x" if before else "-"


def _cell(point: Point | None, paper: tuple[float, float] | None) -> str:
    ours = "" if point is None else f"{point.mean:.2f} ± {point.error:.2f}"
    if point is not None and point.seeds > 1:
        ours += f" (best {point.best:.2f})"
    return ours if paper is None else f"{ours} *{paper[0]:.2f} ({paper[1]:.2f})*"


def _published(task: str, name: str, factor: float) -> tuple[float, float] | None:
    task = _published_task(task)
    if name not in published.MEAN or factor not in published.FACTORS[task]:
        return None
    place = published.FACTORS[task].index(factor)
    mean, best = published.MEAN[name][task][place], published.BEST[name][task][place]
    return None if mean is None or best is None else (mean, best)


def _published_task(task: str) -> str:
    return task.removesuffix("_long")
