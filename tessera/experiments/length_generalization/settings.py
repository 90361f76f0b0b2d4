"""What each budget trains and tests."""

from dataclasses import dataclass, replace
from typing import Any

from tessera.experiments.length_generalization import published
from tessera.tasks.length_generalization import MultiQueryRecall, Reverse, Sort, SourceTargetTask
from tessera.training.fit import FitOptions


@dataclass(frozen=True)
class Setting:
    """One task of one budget.

    Attributes:
        task: what is trained on. hidden_size, num_layers, num_heads: of the model. num_persistent_slots: per head of
            each persistent memory of a mosaic; published: 7/2 of the width. batch_size, options: of the training.
        test_length, factors: sources of the tests are `test_length * factor` long.
        test_tokens: as many examples are tested at a length as this holds, within `test_examples` (fewest, most).
        precision: "bf16" (autocast on GPUs) or "fp32".
    """

    task: SourceTargetTask
    hidden_size: int
    num_layers: int
    num_heads: int
    num_persistent_slots: int
    batch_size: int
    options: FitOptions
    factors: tuple[float, ...]
    test_length: int = published.TEST_LENGTH
    test_tokens: int = 60_000
    test_examples: tuple[int, int] = (16, 500)
    precision: str = "fp32"

    @property
    def examples(self) -> int:
        """Training examples in all, each seen once."""
        return self.options.steps * self.batch_size

    def task_at(self, factor: float) -> SourceTargetTask:
        """The task at `factor` times the test length."""
        return self.task.at_length(int(self.test_length * factor))

    def num_tests(self, width: int) -> int:
        """Examples to test at a length whose sequences are `width` tokens."""
        fewest, most = self.test_examples
        return max(fewest, min(most, self.test_tokens // width))


TASKS = {"mqmtar": MultiQueryRecall(), "sort": Sort(), "reverse": Reverse()}


def _full(name: str) -> Setting:
    options = FitOptions(
        published.EXAMPLES[name] // published.BATCH,
        published.LEARNING_RATE,
        warmup_ratio=published.WARMUP,
        weight_decay=published.WEIGHT_DECAY,
        clip=1.0,
        scalar_learning_rate_scale=10.0,
    )
    sizes = {"hidden_size": published.WIDTH, "num_layers": published.DEPTH[name], "num_heads": published.HEADS}
    sizes["num_persistent_slots"] = 7 * published.WIDTH // 2
    tests = {"factors": published.FACTORS[name], "test_examples": (1000, 1000)}
    return Setting(TASKS[name], **sizes, batch_size=published.BATCH, options=options, **tests, precision="bf16")


def _cpu(name: str, steps: int, **changes: Any) -> Setting:
    options = FitOptions(steps, 3e-3, warmup_ratio=0.05, weight_decay=0.1, clip=1.0, scalar_learning_rate_scale=10.0)
    setting = Setting(TASKS[name], 64, published.DEPTH[name], 4, 0, 32, options, published.FACTORS[name])
    return replace(setting, **changes)


def _smoke(name: str) -> Setting:
    words = {"num_words": 40, "num_queries": 1} if name == "mqmtar" else {}
    task = replace(TASKS[name], length=10, spread=2, num_symbols=8, **words)
    options = FitOptions(20, 3e-3, warmup_ratio=0.05, clip=1.0, scalar_learning_rate_scale=10.0)
    return Setting(task, 16, 1, 2, 8, 16, options, (1, 2), test_length=12, test_tokens=800, test_examples=(4, 20))


# A quarter of the length, and of the symbols, so that a symbol repeats as often as published.
SHORT_SORT = Sort(length=12, spread=4, num_symbols=8)
SETTINGS: dict[str, dict[str, Setting]] = {
    "smoke": {name: _smoke(name) for name in TASKS},
    "cpu": {
        # Two queries: of four, the Gaussian kernel had learned only the first three after 1,000 steps.
        "mqmtar": _cpu("mqmtar", 600, task=MultiQueryRecall(num_queries=2)),
        "sort": _cpu("sort", 2000, task=SHORT_SORT, test_length=16),
        "reverse": _cpu("reverse", 1000, task=Reverse(length=12, spread=4), test_length=16),
        # Sort is learned for its own lengths long before it is learned for others.
        "sort_long": _cpu("sort", 8000, task=SHORT_SORT, test_length=16),
    },
    "full": {name: _full(name) for name in TASKS},
}
SEEDS = {"smoke": 1, "cpu": 1, "full": published.SEEDS}
