"""What each budget trains: a base, the base trained on, and memories around it; all three on the same texts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessera.base.dataclass_io import from_json
from tessera.papers.experiment import Run
from tessera.recipes.sections import Recipe

BASE, CONTINUED = "base", "continued"
MODELS = (BASE, CONTINUED, "armt", "rmt")


@dataclass(frozen=True)
class SegmentSettings:
    """One training on stories, and its tests.

    Attributes:
        model: one of `MODELS`. base: a key of `published.BASES`.
        base_recipe, recipe: of the base's training and, but for the base itself, of the one that starts from it; plain
            values of a `tessera.recipes.sections.Recipe`, without the folder of the base.
        segment: tokens. trained, tested: segments of the longest text in training, and of a tested text.
        sequences: tested texts of each kind.
    """

    model: str
    base: str
    seed: int
    base_recipe: dict[str, Any]
    recipe: dict[str, Any]
    segment: int
    trained: int
    tested: int
    sequences: int

    def read_base_recipe(self) -> Recipe:
        """The recipe of the base, checked."""
        return from_json(Recipe, self.base_recipe, "armt_language")

    def read_recipe(self, base: Path) -> Recipe:
        """The recipe of what starts from the base in this folder, checked."""
        recipe = {**self.recipe, "training": dict(self.recipe["training"]), "model": dict(self.recipe["model"])}
        if self.model == CONTINUED:
            recipe["training"]["initialize_from"] = str(base)
        else:
            recipe["model"]["base"] = str(base)
        return from_json(Recipe, recipe, "armt_language")


@dataclass(frozen=True)
class Budget:
    """A setting of all runs.

    Attributes:
        bases: model sections of recipes. base_steps: of their training, on texts of `trained` segments.
        stages: (segments, steps, peak learning rate) of the training of a memory.
        rate: peak of the base's training.
    """

    bases: dict[str, dict[str, Any]]
    vocab_size: int
    segment: int
    memory_tokens: int
    memory_dim: int
    base_steps: int
    rate: float
    stages: tuple[tuple[int, int, float], ...]
    batch_size: int
    evaluate_every: int
    evaluate_sequences: int
    tested: int
    sequences: int
    seeds: int
    clip: float = 1.0

    @property
    def trained(self) -> int:
        """Segments of the longest texts in training."""
        return max(length for length, _, _ in self.stages)

    def run(self, model: str, base: str, seed: int) -> Run:
        """One training and its tests."""
        base_recipe = {
            "name": base,
            "seed": seed,
            "model": self.bases[base],
            "tokenizer": {"type": "bpe", "vocab_size": self.vocab_size},
            "data": {"source": "stories", "context": self.trained * self.segment},
            "training": {
                "steps": self.base_steps,
                "learning_rate": self.rate,
                "min_learning_rate": self.rate / 10,
                "warmup_steps": self.base_steps // 10,
                "checkpoint_every": max(1, self.base_steps // 5),
                **self._training(),
            },
        }
        recipe = {} if model == BASE else {**base_recipe, "name": model, **self._start(model, base)}
        sizes = (self.segment, self.trained, self.tested, self.sequences)
        settings = SegmentSettings(model, base, seed, base_recipe, recipe, *sizes)
        return Run(f"{base}/{model}/seed {seed}", settings, 0.2 if model == BASE else 1.0)

    def _start(self, model: str, base: str) -> dict[str, Any]:
        """Model section and training of what starts from the base: the same texts in the same steps for all."""
        stages = [
            {"length": length, "min_length": length, "steps": steps, "learning_rate": rate, "target": 2.0}
            for length, steps, rate in self.stages
        ]
        section: dict[str, Any] = {"type": model, "segment_size": self.segment, "num_memory_tokens": self.memory_tokens}
        if model == CONTINUED:
            section = self.bases[base]
        elif model == "armt":
            section["memory_dim"] = self.memory_dim
        return {"model": section, "training": {**self._training(), "curriculum": stages}}

    def _training(self) -> dict[str, Any]:
        return {
            "batch_size": self.batch_size,
            "betas": [0.9, 0.999],
            "weight_decay": 0.01,
            "clip": self.clip,
            "scalar_learning_rate_scale": 10.0,
            "precision": "fp32",
            "evaluate_every": self.evaluate_every,
            "evaluate_sequences": self.evaluate_sequences,
        }


def _transformer(width: int, layers: int) -> dict[str, Any]:
    sizes = {"hidden_size": width, "num_layers": layers, "num_heads": 4}
    return {"type": "transformer", "positions": "rope", **sizes}


def _mosaic(width: int, layers: int) -> dict[str, Any]:
    sizes = {"hidden_size": width, "num_layers": layers, "num_heads": 4, "num_persistent_slots": 7 * width // 2}
    return {"type": "memory_mosaic", **sizes}


SMOKE = Budget(
    bases={"transformer": _transformer(16, 2)},
    vocab_size=300,
    segment=16,
    memory_tokens=2,
    memory_dim=4,
    base_steps=2,
    rate=3e-3,
    stages=((2, 1, 1e-3), (3, 1, 1e-3)),
    batch_size=2,
    evaluate_every=2,
    evaluate_sequences=2,
    tested=4,
    sequences=3,
    seeds=1,
)
CPU = Budget(
    bases={"transformer": _transformer(128, 4), "memory_mosaic": _mosaic(128, 2)},
    vocab_size=2048,
    segment=64,
    memory_tokens=8,
    memory_dim=32,
    base_steps=400,
    rate=3e-3,
    stages=((2, 100, 1e-3), (4, 100, 1e-3), (8, 200, 1e-3)),
    batch_size=8,
    evaluate_every=50,
    evaluate_sequences=16,
    tested=15,
    sequences=64,
    seeds=1,
)
# Segments, memory, steps and rate as published; the base starts from random weights, on the bundled stories, with 4
# heads and a vocabulary of 8,192.
FULL = Budget(
    bases={"transformer": _transformer(768, 12), "memory_mosaic": _mosaic(768, 12)},
    vocab_size=8192,
    segment=128,
    memory_tokens=16,
    memory_dim=96,
    base_steps=10_000,
    rate=1e-3,
    stages=((8, 36_000, 1e-4),),
    batch_size=32,
    evaluate_every=500,
    evaluate_sequences=64,
    tested=15,
    sequences=64,
    seeds=3,
    clip=5.0,
)
BUDGETS = {"smoke": SMOKE, "cpu": CPU, "full": FULL}
