"""What each budget trains: sizes, curricula, seeds, and the lengths that are measured."""

import math
from dataclasses import dataclass, field

from tessera.experiments.associative_retrieval.models import MODELS
from tessera.models.small_models import ModelSize
from tessera.tasks.associative_retrieval import AssociativeRetrieval
from tessera.training.curriculum import Curriculum, Stage
from tessera.training.fit import FitOptions

VOCABULARY = AssociativeRetrieval().vocab_size
KEY_SIZE = "key_size"


def stage(pairs: int, steps: int, target: float, rate: float, key_size: int = 1, at_least: int = 1) -> Stage:
    """A stage of so many pairs, of keys of so many symbols."""
    return Stage(pairs, steps, at_least, target, rate, {KEY_SIZE: key_size})


@dataclass(frozen=True)
class Budget:
    """One of `--budget`.

    Attributes:
        curricula: by rule. batch_size, questions: contexts per step, and questions to each of them.
        options: of all stages.
        measured: numbers of pairs by rule. contexts: held-out contexts per measured number of at most 10 pairs, a
            quarter of them for more; each is asked `asked` questions. check_contexts: of a validation.
        left_out: how many of the last stages a model goes without, being too slow for them.
        ablation: variants of ARMT's sizes, trained on rewrite alone.
    """

    sizes: ModelSize
    curricula: dict[str, Curriculum]
    batch_size: int
    questions: int
    options: FitOptions
    measured: dict[str, tuple[int, ...]]
    contexts: int
    seeds: int
    asked: int = 16
    check_contexts: int = 32
    models: tuple[str, ...] = MODELS
    left_out: dict[str, int] = field(default_factory=dict)
    ablation: dict[str, dict[str, int]] = field(default_factory=dict)

    def curriculum(self, model: str, rule: str) -> Curriculum:
        """What `model` is trained by."""
        stages = self.curricula[rule].stages
        return Curriculum(stages[: len(stages) - self.left_out.get(model, 0)])

    def measured_by(self, model: str, rule: str) -> list[int]:
        """Numbers of pairs to measure `model` at: under remember no more than its last stage's keys are numbers."""
        key_size = self.curriculum(model, rule).stages[-1].settings[KEY_SIZE]
        keys = AssociativeRetrieval(key_size=key_size).num_keys if rule == "remember" else math.inf
        return [pairs for pairs in self.measured[rule] if pairs <= keys]


# Published (ARMT, appendix A and the scripts of its repository): AdamW, weight decay 1e-3, gradients clipped by value.
PUBLISHED = {"weight_decay": 1e-3, "clip_value": 1.0, "warmup_ratio": 0.1, "decay": "linear"}

SMOKE = Budget(
    ModelSize(
        VOCABULARY, num_layers=2, hidden_size=16, num_heads=2, num_memory_tokens=2, memory_dim=4, max_positions=64
    ),
    {
        "rewrite": Curriculum((stage(1, 4, 0.9, 1e-3), stage(2, 4, 0.99, 1e-3))),
        "remember": Curriculum((stage(1, 4, 0.9, 1e-3), stage(2, 4, 0.99, 1e-3, key_size=2))),
    },
    batch_size=4,
    questions=2,
    options=FitOptions(steps=1, learning_rate=1e-3, evaluate_every=4, **PUBLISHED),
    measured={"rewrite": (1, 4), "remember": (1, 4)},
    contexts=6,
    seeds=1,
    asked=4,
    check_contexts=4,
    ablation={"num_memory_tokens": {"num_memory_tokens": 1}},
)
CPU = Budget(
    ModelSize(VOCABULARY, initializer_range=0.05, max_positions=1024),
    {
        "rewrite": Curriculum(
            (
                stage(1, 100, 0.99, 1e-3),
                stage(3, 500, 0.95, 1e-3, at_least=2),
                stage(10, 400, 0.99, 1e-3),
                stage(50, 150, 0.998, 5e-4),
            )
        ),
        "remember": Curriculum(
            (
                stage(1, 100, 0.99, 1e-3),
                stage(3, 500, 0.95, 1e-3, at_least=2),
                stage(10, 300, 0.99, 1e-3),
                stage(20, 250, 0.99, 1e-3, key_size=2),
            )
        ),
    },
    batch_size=16,
    questions=8,
    options=FitOptions(steps=1, learning_rate=1e-3, evaluate_every=50, **PUBLISHED),
    measured={"rewrite": (1, 3, 5, 10, 20, 50, 100, 200, 500), "remember": (1, 3, 5, 10, 20, 40, 60, 100)},
    contexts=192,
    seeds=1,
    left_out={"mamba": 1},
)
_LONG = ((1, 1, 2000), (2, 1, 10_000), (3, 1, 10_000), (5, 1, 10_000), (10, 1, 10_000))
FULL = Budget(
    ModelSize(VOCABULARY, initializer_range=0.02, max_positions=4096),
    {
        "rewrite": Curriculum(
            tuple(
                stage(n, steps, 1.0, 3e-4, key) for n, key, steps in (*_LONG, *((n, 1, 10_000) for n in (20, 40, 50)))
            )
        ),
        "remember": Curriculum(
            tuple(
                stage(n, steps, 1.0, 3e-4, key)
                for n, key, steps in (
                    *_LONG,
                    *((n, 2, 10_000) for n in (20, 40, 50)),
                    (50, 3, 10_000),
                    (200, 3, 15_000),
                )
            )
        ),
    },
    batch_size=512,
    questions=1,
    options=FitOptions(steps=1, learning_rate=3e-4, evaluate_every=250, **PUBLISHED),
    measured={
        "rewrite": (1, 2, 5, 10, 20, 50, 100, 200, 500),
        "remember": (1, 2, 5, 10, 20, 50, 100, 200, 300, 400),
    },
    contexts=1000,
    seeds=3,
    check_contexts=64,
    ablation={
        "1 memory token": {"num_memory_tokens": 1},
        "10 memory tokens": {"num_memory_tokens": 10},
        "memory width 8": {"memory_dim": 8},
        "memory width 64": {"memory_dim": 64},
    },
)
BUDGETS = {"smoke": SMOKE, "cpu": CPU, "full": FULL}
