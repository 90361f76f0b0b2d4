"""What each budget of length generalisation trains and tests."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from tessera.papers.experiment import Run
from tessera.papers.length_generalization import MultiQueryRecall, Reverse, Sort, SourceTargetTask, published
from tessera.tasks.task import TASKS
from tessera.training.fit import FitOptions
from tessera.training.optimizer import PUBLISHED_SCALAR_SCALES

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


@dataclass(frozen=True)
class LengthSettings:
    """One training on one task, and its tests.

    Attributes:
        task: its name, and task_fields: the settings of the task in training. variant: "long" for a longer training.
        name: of the row: one of `KERNELS`, or "transformer". kernel: of the mosaic; None for the transformer.
        hidden_size, num_layers, num_heads: of the model. num_persistent_slots: per head of each persistent memory of a
            mosaic. batch_size, fit: of the training.
        test_length, factors: sources of the tests are `test_length * factor` long.
        test_tokens: as many examples are tested at a length as this holds, within `test_examples` (fewest, most).
        precision: "bf16" (autocast on GPUs) or "fp32". dropout, contextual_dropout, initialization: of the mosaic, see
            `ModelSize`.
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
    test_length: int = published.TEST_LENGTH
    test_tokens: int = 60_000
    test_examples: tuple[int, int] = (16, 500)
    precision: str = "fp32"
    variant: str = ""
    name: str = "gaussian"
    kernel: str | dict[str, Any] | None = "gaussian"
    seed: int = 0
    dropout: float = 0.0
    contextual_dropout: bool = True
    initialization: str = "normal"

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


def _cpu(name: str, task: SourceTargetTask, steps: int, **changes: Any) -> LengthSettings:
    fit = FitOptions(steps, 3e-3, warmup_ratio=0.05, weight_decay=0.1, clip=1.0, scalar_learning_rate_scale=10.0)
    sizes = (64, published.DEPTH[name], 4, 0, 32)
    return LengthSettings(name, asdict(task), *sizes, fit, published.FACTORS[name], **changes)


def _full(settings: LengthSettings) -> LengthSettings:
    """The published settings.

    What differs: bfloat16 instead of float16 (ReLUmax cannot run in float16); the published script accumulates wrongly
    (it steps at every micro-step, on the same batch); all kernels see the newest pair (docs/kernels.md).
    """
    name, steps = settings.task, published.EXAMPLES[settings.task] // published.SETTING["batch_size"]
    fit = FitOptions(
        steps,
        **published.FIT,
        warmup_ratio=published.WARMUP_STEPS / steps,
        schedule_ratio=published.SCHEDULE_STEPS / steps,
        scalar_learning_rate_scale=10.0,
        scalar_learning_rate_scales=dict(PUBLISHED_SCALAR_SCALES),
    )
    tests: dict[str, Any] = {"test_length": published.TEST_LENGTH, "test_examples": (1000, 1000), "precision": "bf16"}
    return replace(settings, task_fields=asdict(TASKS[name]()), fit=fit, **published.SETTING, **tests)


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
    _cpu("mqmtar", MultiQueryRecall(num_queries=2), 600),
    _cpu("sort", SHORT_SORT, 2000, test_length=16),
    _cpu("reverse", Reverse(length=12, spread=4), 1000, test_length=16),
)
# Sort is learned for its own lengths long before it is learned for others.
_LONG = _cpu("sort", SHORT_SORT, 8000, test_length=16, variant="long")
SETTINGS = {"smoke": tuple(map(_smoke, _TASKS)), "cpu": (*_TASKS, _LONG), "full": tuple(map(_full, _TASKS))}
SEEDS = {"smoke": 1, "cpu": 1, "full": 3}
