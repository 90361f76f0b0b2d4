"""What each budget trains: sizes, curricula, seeds, and the lengths that are measured."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

from tessera.models.small_models import ModelSize
from tessera.papers.associative_retrieval import AssociativeRetrieval
from tessera.papers.experiment import Run
from tessera.recipes.curriculum import Curriculum
from tessera.recipes.sections import Stage
from tessera.training.fit import FitOptions

VOCABULARY = AssociativeRetrieval().vocab_size
KEY_SIZE = "key_size"
# Relative time of a step: what the time left is estimated from.
COSTS = {"armt": 1.0, "armt_no_correction": 1.0, "rmt": 0.7, "prmt": 0.7, "mamba": 1.0, "mosaic": 0.4}


@dataclass(frozen=True)
class RetrievalSettings:
    """One training by a curriculum, and its tests.

    Attributes:
        model: one of `MODELS`. rule: "rewrite" or "remember". ablation: what its sizes are changed in.
        curriculum, fit: the stages, and what they share. batch_size, questions: contexts per step, and questions to
            each of them.
        measured: numbers of pairs. test_contexts: held-out contexts per measured number of at most 10 pairs, a quarter
            of them for more, with `test_questions` to each. validation_contexts: of a validation.
        end_token: an end-of-text token, the last of the vocabulary, follows each answer in training and counts in the
            loss, as published.
    """

    model: str
    rule: str
    ablation: str | None
    seed: int
    sizes: ModelSize
    curriculum: Curriculum
    fit: FitOptions
    batch_size: int
    questions: int
    measured: tuple[int, ...]
    test_contexts: int
    test_questions: int
    validation_contexts: int
    end_token: bool = False

    @property
    def key_size(self) -> int:
        """Symbols of a key in the last stage and in tests."""
        return self.curriculum.stages[-1].settings[KEY_SIZE]

    def task(self, pairs: int, key_size: int | None = None) -> AssociativeRetrieval:
        """The rule with so many pairs."""
        return AssociativeRetrieval(self.rule, pairs, key_size or self.key_size)


def stage(pairs: int, steps: int, target: float, rate: float, key_size: int = 1, at_least: int = 1) -> Stage:
    """A stage of so many pairs, of keys of so many symbols."""
    return Stage(pairs, steps, at_least, target, rate, {KEY_SIZE: key_size})


@dataclass(frozen=True)
class Budget:
    """One of `--budget`: see `RetrievalSettings`.

    Attributes:
        curricula, measured: by rule. own_sizes: what a model's sizes differ in.
        ablation: variants of ARMT's sizes, trained on rewrite alone.
    """

    sizes: ModelSize
    curricula: dict[str, Curriculum]
    batch_size: int
    questions: int
    fit: FitOptions
    measured: dict[str, tuple[int, ...]]
    test_contexts: int
    seeds: int
    test_questions: int = 16
    validation_contexts: int = 32
    own_sizes: dict[str, dict[str, Any]] = field(default_factory=dict)
    ablation: dict[str, dict[str, Any]] = field(default_factory=dict)
    end_token: bool = False

    def run(self, model: str, rule: str, seed: int, ablation: str | None = None) -> Run:
        """One run."""
        stages = self.curricula[rule].stages
        # Remembered keys are all different: there are no more pairs than keys.
        keys = AssociativeRetrieval(key_size=stages[-1].settings[KEY_SIZE]).num_keys if rule == "remember" else math.inf
        settings = RetrievalSettings(
            model=model,
            rule=rule,
            ablation=ablation,
            seed=seed,
            sizes=replace(self.sizes, **self.own_sizes.get(model, {}), **(self.ablation[ablation] if ablation else {})),
            curriculum=Curriculum(stages),
            fit=self.fit,
            batch_size=self.batch_size,
            questions=self.questions,
            measured=tuple(pairs for pairs in self.measured[rule] if pairs <= keys),
            test_contexts=self.test_contexts,
            test_questions=self.test_questions,
            validation_contexts=self.validation_contexts,
            end_token=self.end_token,
        )
        key = "/".join([model, rule, *([ablation] if ablation else []), f"seed {seed}"])
        return Run(key, settings, COSTS[model] * sum(one.steps * (one.length + 8) for one in stages))


# Published (ARMT, appendix A and the scripts of its repository): AdamW, weight decay 1e-3, gradients clipped by value.
PUBLISHED: dict[str, Any] = {"weight_decay": 1e-3, "clip_value": 1.0, "warmup_ratio": 0.1, "decay": "linear"}

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
    fit=FitOptions(steps=1, learning_rate=1e-3, evaluate_every=4, **PUBLISHED),
    measured={"rewrite": (1, 4), "remember": (1, 4)},
    test_contexts=6,
    seeds=1,
    test_questions=4,
    validation_contexts=4,
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
    fit=FitOptions(steps=1, learning_rate=1e-3, evaluate_every=50, **PUBLISHED),
    measured={"rewrite": (1, 3, 5, 10, 20, 50, 100, 200, 500), "remember": (1, 3, 5, 10, 20, 40, 60, 100)},
    test_contexts=192,
    seeds=2,
    own_sizes={"mamba": {"mamba_state_size": 32}},  # 4 blocks of width 128, as published
)
_LONG = ((1, 1, 2000), (2, 1, 10_000), (3, 1, 10_000), (5, 1, 10_000), (10, 1, 10_000))
# The rate falls over twice the steps of a stage; Mamba has 4 blocks of width 128 and state 32; PRMT's memory starts at
# N(0, 1). What differs: the mosaic is ours, and so are the seeds of RMT and PRMT (3 instead of 2).
FULL = Budget(
    ModelSize(
        VOCABULARY + 1,
        initializer_range=0.02,
        max_positions=4096,
        memory_initializer_range=1.0,
        mamba_state_size=32,
    ),
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
    fit=FitOptions(steps=1, learning_rate=3e-4, evaluate_every=250, schedule_ratio=2.0, **PUBLISHED),
    end_token=True,
    measured={
        "rewrite": (1, 2, 5, 10, 20, 50, 100, 200, 500),
        "remember": (1, 2, 5, 10, 20, 50, 100, 200, 300, 400),
    },
    test_contexts=1000,
    seeds=3,
    validation_contexts=64,
    ablation={
        "1 memory token": {"num_memory_tokens": 1},
        "10 memory tokens": {"num_memory_tokens": 10},
        "memory width 8": {"memory_dim": 8},
        "memory width 64": {"memory_dim": 64},
    },
)
BUDGETS = {"smoke": SMOKE, "cpu": CPU, "full": FULL}
