"""What each budget of many-shot classification trains and tests."""

from dataclasses import dataclass, replace
from typing import Any

from tessera.papers.experiment import Run
from tessera.papers.many_shot.prompts import DELIMITERS
from tessera.papers.many_shot.published import NAMES
from tessera.papers.many_shot.task import ManyShot
from tessera.papers.task_stage import EarlyStage, TaskStage
from tessera.training.fit import FitOptions

MODELS = tuple(NAMES)


@dataclass(frozen=True)
class ManyShotSettings:
    """One training and its tests.

    Attributes:
        model: one of `MODELS`. hidden_size, num_layers, num_heads: of the transformer whose number of parameters every
            model has. initialization: of v2 and its twin, see `ModelSize`.
        task_fields: settings of the task in training; contexts of both delimiters take turns. span: the short-term
            memory's; the long-term delay is a quarter of it in tests, and from there to the span in training.
        batch_size, fit: of the training; batch_size counts contexts. early_stages: before it, for every model.
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
    early_stages: tuple[EarlyStage, ...] = ()
    seed: int = 0

    def trained_tasks(self, **easier: Any) -> tuple[ManyShot, ...]:
        """The tasks of training, one with each delimiter; `easier`: settings of an early stage."""
        fields = {**self.task_fields, **easier, "order": "mixed", "dense": True}
        return tuple(ManyShot(**fields, delimiter=delimiter) for delimiter in DELIMITERS)

    def stages(self) -> list[TaskStage]:
        """All of training, the early stages first."""
        seed, stages = self.seed * 10_000_019, []
        for number, stage in enumerate(self.early_stages, 1):
            tasks = tuple(task for easier in stage.tasks for task in self.trained_tasks(**easier))
            stages.append(stage.as_stage(number, tasks, self.batch_size, seed))
        return [*stages, TaskStage("training", self.trained_tasks(), self.batch_size, self.fit, seed)]

    def tested_task(self, shots: int, strategy: str) -> ManyShot:
        """The task of one number of shots and strategy (delimiter and order)."""
        delimiter, order = strategy.split(", ")
        fields = {**self.task_fields, "shots": shots, "num_classes": self.test_classes, "fewest_classes": None}
        return ManyShot(**fields, delimiter=delimiter, order=order)

    def run(self, model: str, seed: int) -> Run:
        """The same for another model and seed."""
        steps = sum(stage.fit.steps for stage in self.stages())
        cost = steps * self.batch_size * self.num_layers * (1.6 if model == "mosaic_v2" else 1.0)
        return Run(f"{model}/seed {seed}", replace(self, model=model, seed=seed), cost)


# Reduced: contexts of 4 to 8 of 52 classes with 4 shots, tested on 17 other classes with 4 to 16 shots. In the early
# stages texts repeat: all shots of a class are one text, then two, then three, and the query is one of them.
_FIT = FitOptions(600, 1e-3, warmup_ratio=0.05, weight_decay=0.1, clip=1.0, scalar_learning_rate_scale=50.0)
_EARLY = ((1, 200), (2, 75), (3, 75))  # different texts of a class, steps
_CPU = ManyShotSettings(
    "mosaic_v2", 128, 2, 4, {"shots": 4, "num_classes": 8, "fewest_classes": 4}, 4, _FIT,
    test_shots=(4, 8, 16), contexts=16, queries=8,
    early_stages=tuple(EarlyStage(({"distinct": texts},), replace(_FIT, steps=steps)) for texts, steps in _EARLY),
)  # fmt: skip
_SMOKE = replace(
    _CPU, hidden_size=16, num_heads=2, task_fields={"shots": 1, "num_classes": 2, "vocab_size": 400}, batch_size=2,
    fit=FitOptions(4, 1e-3), test_shots=(1, 2), contexts=2, queries=2, test_classes=2, span=8,
    early_stages=(EarlyStage(({"distinct": 1},), FitOptions(2, 1e-3)),),
)  # fmt: skip
BUDGETS = {"smoke": _SMOKE, "cpu": _CPU}
SEEDS = {"smoke": 1, "cpu": 3}
