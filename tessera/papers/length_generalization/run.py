"""Length generalisation: trained on up to 64 tokens, tested on up to 64 times as many, with every kernel."""

from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from torch import nn

from tessera.memories.contextual import ContextualMemory
from tessera.models.sizes import num_parameters
from tessera.papers.experiment import Run, RunContext, RunSelection
from tessera.papers.length_generalization.task import MultiQueryRecall, Reverse, Sort, SourceTargetTask
from tessera.papers.task_stage import TaskStage, held_out_scores, small_model, train_stages
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
SHARPER = 2.0


def plan(selection: RunSelection) -> list[Run]:
    """Task by task, the mosaic's kernels first; seeds outside, so that the first seed is complete first.

    Heads that learn their alpha are trained on MQMTAR alone.
    """
    # The mosaic is the only one that has kernels.
    models = selection.models or (MODELS if selection.kernels is None else ("mosaic",))
    kernels = selection.kernels or (("triweight",) if selection.budget == "smoke" else tuple(KERNELS))
    names = [*(kernels if "mosaic" in models else ()), *(["transformer"] if "transformer" in models else ())]
    seeds = range(selection.seeds or 1)
    points = product(seeds, SETTINGS[selection.budget], names)
    return [s.run(name, seed) for seed, s, name in points if s.task == "mqmtar" or name != "learned_alpha"]


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train on examples that are new at every step, then test at every length."""
    settings, device, task = run.configuration, context.device, run.configuration.trained_task
    model = build(settings).to(device)
    stage = TaskStage("training", (task,), settings.batch_size, settings.fit, settings.seed * 10_000_019)
    outcome: dict[str, Any] = {**train_stages(model, [stage], context), "parameters": num_parameters(model)}
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
