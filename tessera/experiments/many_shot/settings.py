"""What each budget of many-shot classification trains and tests."""

from dataclasses import dataclass, replace
from typing import Any

from tessera.experiments.experiment import Run
from tessera.experiments.many_shot.published import NAMES
from tessera.tasks.many_shot import ManyShot
from tessera.training.fit import FitOptions

MODELS = tuple(NAMES)
STRATEGIES = tuple(f"{delimiter}, {order}" for delimiter in ("newline", "space") for order in ("fixed", "shuffled"))


@dataclass(frozen=True)
class ManyShotSettings:
    """One training and its tests.

    Attributes:
        model: one of `MODELS`. hidden_size, num_layers, num_heads: of the transformer whose number of parameters every
            model has. initialization: of v2 and its twin, see `ModelSize`.
        task_fields: settings of the task in training; contexts of both delimiters take turns. span: the short-term
            memory's; the long-term delay is a quarter of it in tests, and from there to the span in training.
        batch_size, fit: of the training; batch_size counts contexts.
        test_classes: of each context in tests. test_shots: shots of the tests. contexts, queries: tested contexts of
            each number of shots and strategy, and queries of each context.
    """

    model: str
    hidden_size: int
    num_layers: int
    num_heads: int
    task_fields: dict[str, Any]
    batch_size: int
    fit: FitOptions
    test_shots: tuple[int, ...]
    contexts: int
    queries: int
    test_classes: int = 8
    span: int = 32
    initialization: str = "normal"
    seed: int = 0

    def trained_task(self, step: int) -> ManyShot:
        """The task of one step."""
        return ManyShot(**self.task_fields, delimiter=("newline", "space")[step % 2], order="mixed", dense=True)

    def tested_task(self, shots: int, strategy: str) -> ManyShot:
        """The task of one number of shots and strategy (delimiter and order)."""
        delimiter, order = strategy.split(", ")
        fields = {**self.task_fields, "shots": shots, "num_classes": self.test_classes, "fewest_classes": None}
        return ManyShot(**fields, delimiter=delimiter, order=order)

    def run(self, model: str, seed: int) -> Run:
        """The same for another model and seed."""
        settings = replace(self, model=model, seed=seed)
        cost = self.fit.steps * self.batch_size * self.num_layers * (1.6 if model == "mosaic_v2" else 1.0)
        return Run(f"{model}/seed {seed}", settings, cost)


# Reduced: contexts of 4 to 8 of 52 classes with 4 shots, tested on 17 other classes with 4 to 16 shots.
CPU = ManyShotSettings(
    "mosaic_v2", 128, 2, 4, {"shots": 4, "num_classes": 8, "fewest_classes": 4}, 4,
    FitOptions(300, 1e-3, warmup_ratio=0.05, weight_decay=0.1, clip=1.0, scalar_learning_rate_scale=50.0),
    test_shots=(4, 8, 16), contexts=16, queries=8,
)  # fmt: skip
SMOKE = replace(
    CPU, hidden_size=16, num_heads=2, task_fields={"shots": 1, "num_classes": 2, "vocab_size": 400}, batch_size=2,
    fit=FitOptions(4, 1e-3), test_shots=(1, 2), contexts=2, queries=2, test_classes=2, span=8,
)  # fmt: skip
# Larger, for a GPU: longer texts, more classes at once, and three times the shots in training.
FULL = replace(
    CPU, hidden_size=512, num_layers=8, num_heads=8, batch_size=64, span=256,
    task_fields={"shots": 12, "num_classes": 8, "fewest_classes": 4, "max_characters": 500, "vocab_size": 4096},
    fit=FitOptions(20_000, 1e-3, 1e-5, warmup_ratio=0.05, weight_decay=0.1, betas=(0.9, 0.95), clip=1.0),
    test_shots=(4, 12, 24, 48), contexts=200,
)  # fmt: skip
BUDGETS = {"smoke": SMOKE, "cpu": CPU, "full": FULL}
SEEDS = {"smoke": 1, "cpu": 3, "full": 3}
