"""Length generalisation: trained on up to 64 tokens, tested on up to 64 times as many, with every kernel."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from torch import nn

from tessera.memories.contextual import ContextualMemory
from tessera.models.sizes import num_parameters
from tessera.papers.curves import doubling, draw_curve, panels, styles
from tessera.papers.experiment import LIBRARY, PAPER_KERNELS, Experiment, Record, Run, RunContext, RunSelection
from tessera.papers.length_generalization.task import MultiQueryRecall, Reverse, Sort, SourceTargetTask
from tessera.papers.records import grouped, over_seeds, points_of
from tessera.papers.tables import fewer, markdown, with_error
from tessera.papers.task_stage import TaskStage, held_out_scores, small_model, train_on_tasks
from tessera.tasks.task import TASKS
from tessera.training.fit import FitOptions

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
    "learned_alpha": {"name": "entmax", "alpha": 1.5},
}
MODELS = ("mosaic", "transformer")
# Table 6: lengths of the tests as multiples of 64.
FACTORS = {"mqmtar": (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0), "reverse": (1.0, 1.5), "sort": (1.0, 2.0, 4.0)}
SHARPER = 2.0
TITLES = {"mqmtar": "MQMTAR", "sort": "Sort", "reverse": "Reverse", "sort_long": "Sort, four times as long"}
RULES = {
    "mqmtar": "MQMTAR: recall the values of several keys",
    "sort": "Sort: write in ascending order",
    "reverse": "Reverse: write backwards",
    "sort_long": "Sort, trained four times longer",
}
# Names of rows in the order of tables and figures; the transformer is not in the paper's tables.
NAMES = {
    **{kernel: name for kernel, name in PAPER_KERNELS.items() if not kernel.endswith("knn")},
    **{f"{base.lower()}_knn_{k}": f"{base} kNN, k = {k}" for base in ("Gaussian", "uniform") for k in (16, 32)},
    "learned_alpha": "alpha learned from 3/2 in each head",
    "transformer": "Transformer (rotary)",
}
# Table 6. The published script adds: weight decay 0.1, betas 0.9 and 0.95, gradients of norm 1; the rate rises over
# 40,000 steps and falls to 5e-5 at 156,250; dropout of 0.05, but not in contextual memories. It steps at every
# micro-step, on the same batch.
PAPER_SETTINGS = {
    "mqmtar": (4, 512, 8, 2688, "195,312", 256, 0.001, "32 to 64", 256, 4, 64),
    "reverse": (4, 512, 8, 2688, "117,187", 256, 0.001, "32 to 64", 32, "-", 64),
    "sort": (2, 512, 8, 2688, "156,250", 256, 0.001, "32 to 64", 32, "-", 64),
}
# Of each seed, length factor (as JSON has it) -> exact match: mean, standard error, count.
ExactMatch = Sequence[Mapping[str, Sequence[float]]]
EveryRecord = Sequence[tuple[tuple[str, str], Record]]  # task and name of its row
Rows = dict[str, tuple[tuple[float | None, ...], ...]]
# Tables 2 and 7: exact match on MQMTAR, reverse and sort, mean over three seeds. None: not to be read from the table.
MEAN: Rows = {
    "gaussian": ((0.99, 0.96, 0.93, 0.85, 0.64, 0.14, 0.00), (1.00, 0.14), (1.00, 0.06, 0.00)),
    "gaussian_knn_16": ((0.99, 0.97, 0.93, 0.85, 0.65, 0.25, 0.05), (0.86, 0.00), (1.00, 0.74, 0.00)),
    "gaussian_knn_32": ((0.99, 0.97, 0.93, 0.84, 0.68, 0.27, 0.05), (0.99, 0.00), (1.00, 0.80, 0.01)),
    # Of this row of table 7 six entries of twelve are given; these four have an unambiguous place.
    "uniform_knn_16": ((0.58, None, None, None, None, None, None), (None, None), (1.00, 0.41, 0.00)),
    "uniform_knn_32": ((0.04, 0.00, 0.00, 0.00, 0.00, 0.00, 0.00), (0.42, 0.00), (1.00, 0.00, 0.00)),
    "normalized_relu": ((1.00, 1.00, 0.89, 0.66, 0.44, 0.33, 0.31), (1.00, 0.19), (1.00, 0.05, 0.00)),
    "relumax": ((1.00, 1.00, 0.99, 0.92, 0.74, 0.42, 0.12), (1.00, 0.23), (1.00, 0.80, 0.30)),
    "sparsemax": ((1.00, 1.00, 1.00, 0.98, 0.86, 0.63, 0.31), (1.00, 0.03), (1.00, 0.92, 0.29)),
    "biweight": ((1.00, 1.00, 0.99, 0.95, 0.75, 0.51, 0.23), (1.00, 0.05), (1.00, 0.39, 0.26)),
    "triweight": ((1.00, 1.00, 0.99, 0.97, 0.89, 0.61, 0.25), (1.00, 0.26), (1.00, 0.98, 0.07)),
}
# The same tables' superscripts: the best of the three seeds.
BEST: Rows = {
    "gaussian": ((1.00, 1.00, 0.99, 0.97, 0.81, 0.20, 0.00), (1.00, 0.38), (1.00, 0.17, 0.00)),
    "gaussian_knn_16": ((1.00, 1.00, 0.99, 0.96, 0.78, 0.36, 0.09), (1.00, 0.00), (1.00, 0.89, 0.00)),
    "gaussian_knn_32": ((1.00, 1.00, 0.99, 0.96, 0.85, 0.36, 0.05), (1.00, 0.00), (1.00, 0.91, 0.02)),
    "uniform_knn_16": ((0.71, None, None, None, None, None, None), (None, None), (1.00, 0.63, 0.00)),
    "uniform_knn_32": ((0.08, 0.00, 0.00, 0.00, 0.00, 0.00, 0.00), (0.66, 0.00), (1.00, 0.00, 0.00)),
    "normalized_relu": ((1.00, 1.00, 1.00, 1.00, 1.00, 0.98, 0.94), (1.00, 0.56), (1.00, 0.14, 0.00)),
    "relumax": ((1.00, 1.00, 1.00, 0.96, 0.87, 0.59, 0.18), (1.00, 0.68), (1.00, 1.00, 0.91)),
    "sparsemax": ((1.00, 1.00, 1.00, 1.00, 0.98, 0.84, 0.51), (1.00, 0.06), (1.00, 1.00, 0.79)),
    "biweight": ((1.00, 1.00, 1.00, 0.99, 0.93, 0.74, 0.42), (1.00, 0.06), (1.00, 1.00, 0.77)),
    "triweight": ((1.00, 1.00, 1.00, 0.98, 0.95, 0.76, 0.45), (1.00, 0.70), (1.00, 0.99, 0.11)),
}


@dataclass(frozen=True)
class LengthSettings:
    """One training on one task, and its tests.

    Attributes:
        task: its name, and task_fields: the settings of the task in training. variant: "long" for a longer training.
        name: of the row: one of `KERNELS`, or "transformer". kernel: of the mosaic; None for the transformer.
        num_persistent_slots: per head of each persistent memory of a mosaic.
        test_length, factors: sources of the tests are `test_length * factor` long.
        test_tokens: as many examples are tested at a length as this holds, within `test_examples` (fewest, most).
    """

    task: str
    task_fields: dict[str, int]
    hidden_size: int
    num_layers: int
    num_heads: int
    num_persistent_slots: int
    batch_size: int
    fit: FitOptions
    factors: tuple[float, ...]
    test_length: int = 64
    test_tokens: int = 60_000
    test_examples: tuple[int, int] = (16, 500)
    variant: str = ""
    name: str = "gaussian"
    kernel: str | dict[str, Any] | None = "gaussian"
    seed: int = 0

    @property
    def key(self) -> str:
        """Task and variant, as tables and keys of runs have it."""
        return f"{self.task}_{self.variant}".rstrip("_")

    @property
    def trained_task(self) -> SourceTargetTask:
        """The task in training."""
        task = TASKS[self.task](**self.task_fields)
        assert isinstance(task, SourceTargetTask), f"{self.task} has no sources and targets"
        return task

    def task_at(self, factor: float) -> SourceTargetTask:
        """The task at `factor` times the test length."""
        return self.trained_task.at_length(int(self.test_length * factor))

    def run(self, name: str, seed: int) -> Run:
        """The same for another row and seed."""
        settings = replace(self, name=name, kernel=KERNELS.get(name), seed=seed)
        tokens = self.fit.steps * self.batch_size * 3 * self.task_fields["length"]
        return Run(f"{self.key}/{name}/seed {seed}", settings, float(tokens * self.num_layers * self.hidden_size))


def _cpu(name: str, task: SourceTargetTask, num_layers: int, steps: int, **changes: Any) -> LengthSettings:
    fit = FitOptions(steps, 3e-3, warmup_ratio=0.05, weight_decay=0.1, clip=1.0, scalar_learning_rate_scale=10.0)
    return LengthSettings(name, asdict(task), 64, num_layers, 4, 0, 32, fit, FACTORS[name], **changes)


def _smoke(settings: LengthSettings) -> LengthSettings:
    fields = {**settings.task_fields, "length": 10, "spread": 2, "num_symbols": 8}
    if settings.task == "mqmtar":
        fields |= {"num_words": 40, "num_queries": 1}
    return replace(
        settings, task_fields=fields, hidden_size=16, num_layers=1, num_heads=2, num_persistent_slots=8, batch_size=16,
        fit=replace(settings.fit, steps=20), factors=(1.0, 2.0), test_length=12, test_tokens=800, test_examples=(4, 20),
    )  # fmt: skip


# A quarter of the length, and of the symbols, so that a symbol repeats as often as published.
SHORT_SORT = Sort(length=12, spread=4, num_symbols=8)
_TASKS = (
    # Two queries: of four, the Gaussian kernel had learned only the first three after 1,000 steps.
    _cpu("mqmtar", MultiQueryRecall(num_queries=2), 4, 600),
    _cpu("sort", SHORT_SORT, 2, 2000, test_length=16),
    _cpu("reverse", Reverse(length=12, spread=4), 4, 1000, test_length=16),
)
# Sort is learned for its own lengths long before it is learned for others.
_LONG = _cpu("sort", SHORT_SORT, 2, 8000, test_length=16, variant="long")
SETTINGS = {"smoke": tuple(map(_smoke, _TASKS)), "cpu": (*_TASKS, _LONG)}


def plan(selection: RunSelection) -> list[Run]:
    """Task by task, the mosaic's kernels first; seeds outside, so that the first seed is complete first.

    Heads that learn their alpha are trained on MQMTAR alone.
    """
    # The mosaic is the only one that has kernels.
    models = selection.models or (MODELS if selection.kernels is None else ("mosaic",))
    kernels = selection.kernels or (("triweight",) if selection.budget == "smoke" else tuple(KERNELS))
    names = [*(kernels if "mosaic" in models else ()), *(["transformer"] if "transformer" in models else ())]
    points = product(range(selection.seeds or 1), SETTINGS[selection.budget], names)
    return [s.run(name, seed) for seed, s, name in points if s.task == "mqmtar" or name != "learned_alpha"]


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train on examples that are new at every step, then test at every length."""
    settings, device, task = run.configuration, context.device, run.configuration.trained_task
    model = build(settings).to(device)
    stage = TaskStage("training", (task,), settings.batch_size, settings.fit, settings.seed * 10_000_019)
    outcome: dict[str, Any] = {**train_on_tasks(model, [stage], context), "parameters": num_parameters(model)}
    for factor in settings.factors:
        context.report(1.0, f"testing at {factor:g} x {settings.test_length}")
        outcome.setdefault("scores", {})[f"{factor:g}"] = evaluate(model, settings, factor, device)
    memories = [module for module in model.modules() if isinstance(module, ContextualMemory)]
    outcome["alphas"] = [memory.learned_alpha.alpha.tolist() for memory in memories if memory.learned_alpha is not None]
    return outcome | sharper(model, settings, outcome["scores"], device)


def build(settings: LengthSettings) -> nn.Module:
    """The mosaic with its kernel, or a transformer with rotary positions (learned ones end with training)."""
    name, vocab_size = "transformer_rope" if settings.kernel is None else "mosaic", settings.trained_task.vocab_size
    return small_model(settings, name, vocab_size=vocab_size, kernel=settings.kernel or "gaussian")


def evaluate(model: nn.Module, settings: LengthSettings, factor: float, device: str) -> dict[str, list[float]]:
    """Mean, standard error and count at `factor` times the test length, of each score that two examples have."""
    task = settings.task_at(factor)
    width = task.sample(1, 0, "test").tokens.shape[1]
    estimates = held_out_scores(model, task, width, settings.test_tokens, settings.test_examples, device)
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
    for memory in memories:
        bandwidth: Any = memory.bandwidth
        bandwidth.scale = SHARPER
    return {"sharper": {f"{alive[-1]:g}": evaluate(model, settings, alive[-1], device)}}


def _rows(records: Mapping[str, Record]) -> dict[tuple[str, str], list[Record]]:
    """The records of each task and row, by seed, in the order of the tables."""
    order = [(task, name) for task in TITLES for name in NAMES]
    return grouped(records, lambda settings: (settings.key, settings.name), order)


def exact_match(records: Mapping[str, Record]) -> dict[str, dict[str, ExactMatch]]:
    """Task -> row -> exact match, in the order of the tables."""
    by_task: dict[str, dict[str, ExactMatch]] = {}
    for (task, name), seeds in _rows(records).items():
        scores = [record.outcome["scores"] for record in seeds]
        by_task.setdefault(task, {})[name] = [{f: of_seed[f]["exact_match"] for f in of_seed} for of_seed in scores]
    return by_task


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """A table for each task, what sharper memories change, the second symbols of MQMTAR, and the settings."""
    parts = {}
    for task, rows in exact_match(records).items():
        factors = sorted({float(factor) for exact in rows.values() for of_seed in exact for factor in of_seed})
        headings = ["kernel", "seeds", *(f"{factor:g}x" for factor in factors), "half at"]
        parts[TITLES[task]] = markdown(headings, [_row(task, name, exact, factors) for name, exact in rows.items()])
    every_record = [(row, record) for row, seeds in _rows(records).items() for record in seeds]
    return parts | {
        "Inverse bandwidth doubled": _sharper(every_record),
        "MQMTAR, second symbols": _second_symbols(every_record),
        "MQMTAR, learned alphas": _alphas(every_record),
        "Settings": _settings(every_record),
    }


def _row(task: str, name: str, exact: ExactMatch, factors: list[float]) -> list[str]:
    means, best = (_published(numbers, task, name) for numbers in (MEAN, BEST))
    points, cells = points_of(exact), []
    for factor in factors:
        point = points.get(factor)
        cells.append(with_error(point))
        if point is not None and point.count > 1:
            cells[-1] += f" ({max(of_seed[f'{factor:g}'][0] for of_seed in exact if f'{factor:g}' in of_seed):.2f})"
        if point is not None:
            cells[-1] += fewer(points, factor)
        if factor in means:
            cells[-1] += f" *{means[factor]:.2f} ({best[factor]:.2f})*"
    ours = half({factor: point.mean for factor, point in points.items()})
    cells.append(f"{ours} *{half(means)}*" if len(means) > 1 else ours)
    return [NAMES[name], str(max(point.count for point in points.values())), *cells]


def _published(numbers: Rows, task: str, name: str) -> dict[float, float]:
    """Length factor -> the paper's number, where it is known."""
    task = task.removesuffix("_long")
    row = dict(zip(FACTORS, numbers.get(name, ()))).get(task, ())
    return {factor: value for factor, value in zip(FACTORS[task], row) if value is not None}


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


def _sharper(records: EveryRecord) -> str:
    """Scores at the longest length that still works, as trained and with sharper memories (see `sharper`)."""
    names, rows = ("exact_match", "token_accuracy", "first_symbol", "second_symbol"), []
    for (task, name), record in records:
        for factor, sharp in record.outcome.get("sharper", {}).items():
            scores = record.outcome["scores"][factor]
            if scores["exact_match"][0] + sharp["exact_match"][0] > 0:  # else there is nothing to see
                cells = [f"{scores[n][0]:.2f} -> {sharp[n][0]:.2f}" if n in sharp else "" for n in names]
                rows.append([TITLES[task], NAMES[name], record.configuration.seed, f"{factor}x", *cells])
    headings = ["task", "kernel", "seed", "length", "exact match", "all symbols", "first symbol", "second symbol"]
    return markdown(headings, rows)


def _second_symbols(records: EveryRecord) -> str:
    """At the middle length: right second symbols, where the first says which value it is and where it does not."""
    names, rows = ("first_symbol", "second_alone", "second_shared"), []
    for (_, name), record in records:
        factor, scores = list(record.outcome["scores"].items())[len(record.outcome["scores"]) // 2]
        if all(score in scores for score in names):
            cells = [with_error(over_seeds([scores[score]])) for score in names]
            rows.append([NAMES[name], record.configuration.seed, f"{factor}x", *cells])
    headings = ["kernel", "seed", "length", "first symbol", "second, first occurs once", "second, first shared"]
    return markdown(headings, rows)


def _alphas(records: EveryRecord) -> str:
    """What each head's memory learned, seed by seed and block by block."""
    rows = [
        [record.configuration.seed, block, *(f"{alpha:.2f}" for alpha in alphas)]
        for _, record in records
        for block, alphas in enumerate(record.outcome.get("alphas", ()), 1)
    ]
    heads = [f"head {head}" for head in range(1, len(rows[0]) - 1)] if rows else []
    return markdown(["seed", "block", *heads], rows)


def _settings(records: EveryRecord) -> str:
    rows = []
    for task, ours in {task: record.configuration for (task, _), record in records}.items():
        fields, fit = ours.task_fields, ours.fit
        source = f"{fields['length'] - fields['spread']} to {fields['length'] + fields['spread']}"
        sizes = [ours.num_layers, ours.hidden_size, ours.num_heads, ours.num_persistent_slots]
        training = [f"{fit.steps:,}", ours.batch_size, f"{fit.learning_rate:g}", source]
        tested = [fields["num_symbols"], fields.get("num_queries", "-"), ours.test_length]
        rows += [[TITLES[task], "here", *sizes, *training, *tested], ["", "paper", *PAPER_SETTINGS[ours.task]]]
    headings = ["task", "", "layers", "width", "heads", "slots", "steps", "batch", "peak rate", "source tokens"]
    return markdown([*headings, "symbols", "queries", "1x is"], rows)


def plot(records: Mapping[str, Record], path: Path) -> None:
    """Draw exact match against length, one panel per task."""
    by_task = {task: {n: points_of(e) for n, e in rows.items()} for task, rows in exact_match(records).items()}
    rows, columns = (2, 2) if len(by_task) > 3 else (1, max(1, len(by_task)))
    title = "Exact match beyond the lengths of training: ours (solid), paper at its size (hollow, dashed)"
    with panels(path, 6.4 * columns, 4.8 * rows + 0.6, rows, columns, title, legend="shared") as axes:
        for axis, (task, by_name) in zip(axes, by_task.items()):
            for name, points in by_name.items():
                style = styles(NAMES)[name]
                draw_curve(axis, points, NAMES[name], **style)
                known = _published(MEAN, task, name)
                axis.plot(list(known), list(known.values()), "--", lw=0.9, fillstyle="none", alpha=0.6, **style)
            doubling(axis, [factor for points in by_name.values() for factor in points], "{:g}")
            labels = {"xlabel": "length / longest in training", "ylabel": "exact match"}
            axis.set(ylim=(-0.03, 1.04), title=RULES[task], **labels)


EXPERIMENT = Experiment(
    LIBRARY["length_generalization"], LengthSettings, plan, execute, tables, plot, MODELS, tuple(KERNELS)
)
