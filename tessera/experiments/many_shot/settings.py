"""What each budget of many-shot classification trains and tests."""

from dataclasses import dataclass, replace
from typing import Any

from tessera.experiments.experiment import Run
from tessera.experiments.many_shot.published import NAMES
from tessera.tasks.many_shot import ManyShot
from tessera.training.curriculum import Stage
from tessera.training.fit import FitOptions

MODELS = tuple(NAMES)
# v1 as its published library begins; and a Llama of this width learns faster from larger weights.
INITIALIZATION = {"mosaic": "fan_in", "llama": "fan_in"}
STRATEGIES = tuple(f"{delimiter}, {order}" for delimiter in ("newline", "space") for order in ("fixed", "shuffled"))


@dataclass(frozen=True)
class ManyShotSettings:
    """One training and its tests.

    Attributes:
        model: one of `MODELS`. hidden_size, num_layers, num_heads: of the transformer whose number of parameters every
            model has. initialization: of v2 and its twin, see `ModelSize`.
        task_fields: settings of the task in training; contexts of both delimiters take turns. span: the short-term
            memory's; the long-term delay is a quarter of it in tests, and from there to the span in training.
        stages: a curriculum over the classes of a context; a stage's score is on classes that were not trained on.
        batch_size: contexts per step where they have the most classes; of fewer classes as many more.
        fit: of all stages, but for their steps and rate.
        test_classes: of each context in tests. test_shots: shots of the tests. contexts, queries: tested contexts of
            each number of shots and strategy, and queries of each context.
    """

    model: str
    hidden_size: int
    num_layers: int
    num_heads: int
    task_fields: dict[str, Any]
    stages: tuple[Stage, ...]
    batch_size: int
    fit: FitOptions
    test_shots: tuple[int, ...]
    contexts: int
    queries: int
    test_classes: int = 8
    span: int = 32
    initialization: str = "normal"
    seed: int = 0

    def trained_task(self, stage: Stage, step: int) -> ManyShot:
        """The task of one step."""
        classes: dict[str, Any] = {"num_classes": stage.length, "fewest_classes": stage.min_length}
        return ManyShot(**self.task_fields, **classes, delimiter=("newline", "space")[step % 2], dense=True)

    def batch(self, stage: Stage) -> int:
        """Contexts per step: about as many examples in each stage."""
        return self.batch_size * max(one.length for one in self.stages) // stage.length

    def tested_task(self, shots: int, strategy: str) -> ManyShot:
        """The task of one number of shots and strategy (delimiter and order)."""
        delimiter, order = strategy.split(", ")
        fields = {**self.task_fields, "shots": shots, "num_classes": self.test_classes}
        return ManyShot(**fields, delimiter=delimiter, order=order)

    def run(self, model: str, seed: int) -> Run:
        """The same for another model and seed."""
        settings = replace(self, model=model, seed=seed)
        steps = sum(stage.steps for stage in self.stages)
        cost = steps * self.batch_size * self.num_layers * (1.6 if model == "mosaic_v2" else 1.0)
        return Run(f"{model}/seed {seed}", replace(settings, initialization=INITIALIZATION.get(model, "normal")), cost)


# As in the published curricula, a stage ends halfway down a linear schedule.
_FIT = FitOptions(1, 1.0, warmup_ratio=0.1, decay="linear", schedule_ratio=2.0, weight_decay=0.1, clip=1.0,
                  scalar_learning_rate_scale=50.0, evaluate_every=50)  # fmt: skip
# Reduced: contexts of 52 classes with 4 shots, tested on 17 other classes with 4 to 16 shots. With eight classes from
# the start most trainings stay at guessing among the labels for hundreds of steps; with two they leave it in a hundred.
CPU = ManyShotSettings(
    "mosaic_v2", 128, 2, 4, {"shots": 4},
    (Stage(2, 300, 2, 0.85), Stage(4, 200, 2, 0.85), Stage(8, 300, 4, 2.0)), 4, _FIT,
    test_shots=(4, 8, 16), contexts=16, queries=8,
)  # fmt: skip
SMOKE = replace(
    CPU, hidden_size=16, num_heads=2, task_fields={"shots": 1, "vocab_size": 400},
    stages=(Stage(2, 2, 2, 0.9), Stage(4, 2, 2, 2.0)), batch_size=2, fit=replace(_FIT, evaluate_every=2),
    test_shots=(1, 2), contexts=2, queries=2, test_classes=2, span=8,
)  # fmt: skip
# Larger, for a GPU: longer texts, more classes at once, and three times the shots in training.
FULL = replace(
    CPU, hidden_size=512, num_layers=8, num_heads=8, batch_size=64, span=256,
    task_fields={"shots": 12, "max_characters": 500, "vocab_size": 4096},
    stages=(Stage(2, 2000, 2, 0.95), Stage(4, 2000, 2, 0.95), Stage(8, 16_000, 4, 2.0)),
    fit=replace(_FIT, betas=(0.9, 0.95), evaluate_every=500, scalar_learning_rate_scale=1.0),
    test_shots=(4, 12, 24, 48), contexts=200,
)  # fmt: skip
BUDGETS = {"smoke": SMOKE, "cpu": CPU, "full": FULL}
SEEDS = {"smoke": 1, "cpu": 3, "full": 3}
