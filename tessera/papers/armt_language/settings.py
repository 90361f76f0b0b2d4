"""What each budget trains: a base, the base trained on, and memories around it; all three on the same texts."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tessera.base.dataclass_io import from_json
from tessera.papers.experiment import Run, RunSelection
from tessera.recipes.sections import Recipe

BASE, CONTINUED = "base", "continued"
MODELS = (BASE, CONTINUED, "armt", "rmt")
RATE = 3e-3  # peak of the base's training


@dataclass(frozen=True)
class SegmentSettings:
    """One training on stories, and its tests.

    Attributes:
        model: one of `MODELS`. base: a key of `BASES`.
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

    def run(self, model: str, base: str, section: dict[str, Any], seed: int) -> Run:
        """The same for another model, base (of this model section) and seed: the same texts in the same steps."""
        base_recipe = {**self.base_recipe, "name": base, "seed": seed, "model": section}
        sections = {CONTINUED: section, "armt": self.recipe["model"]}
        sections["rmt"] = {key: value for key, value in sections["armt"].items() if key != "memory_dim"}
        sections["rmt"]["type"] = "rmt"
        recipe = {**base_recipe, "name": model, "training": self.recipe["training"], "model": sections.get(model)}
        settings = replace(self, model=model, base=base, seed=seed, base_recipe=base_recipe)
        settings = replace(settings, recipe={} if model == BASE else recipe)
        return Run(f"{base}/{model}/seed {seed}", settings, 0.2 if model == BASE else 1.0)


def _budget(
    segment: int, memory: dict[str, int], vocab_size: int, steps: int, stages: tuple[tuple[int, int], ...],
    sequences: int, **sizes: int,
) -> SegmentSettings:  # fmt: skip
    """ARMT around the first base; `stages`: segments and steps of a memory's training; `steps`: of the base's."""
    trained = max(length for length, _ in stages)
    training: dict[str, Any] = {
        "betas": [0.9, 0.999],
        "weight_decay": 0.01,
        "clip": 1.0,
        "scalar_learning_rate_scale": 10.0,
        "precision": "fp32",
        **sizes,
    }
    base_training = {
        "steps": steps,
        "learning_rate": RATE,
        "min_learning_rate": RATE / 10,
        "warmup_steps": steps // 10,
        "checkpoint_every": max(1, steps // 5),
        **training,
    }
    curriculum = [
        {"length": length, "min_length": length, "steps": steps, "learning_rate": 1e-3, "target": 2.0}
        for length, steps in stages
    ]
    base_recipe = {
        "tokenizer": {"type": "bpe", "vocab_size": vocab_size},
        "data": {"source": "stories", "context": trained * segment},
        "training": base_training,
    }
    section = {"type": "armt", "segment_size": segment, **memory}
    recipe = {"model": section, "training": {**training, "curriculum": curriculum}}
    return SegmentSettings("armt", "transformer", 0, base_recipe, recipe, segment, trained, 2 * trained - 1, sequences)


BUDGETS = {
    "smoke": _budget(
        16, {"num_memory_tokens": 2, "memory_dim": 4}, 300, 2, ((2, 1), (3, 1)), 3,
        batch_size=2, evaluate_every=2, evaluate_sequences=2,
    ),
    "cpu": _budget(
        64, {"num_memory_tokens": 8, "memory_dim": 32}, 2048, 400, ((2, 100), (4, 100), (8, 200)), 64,
        batch_size=8, evaluate_every=50, evaluate_sequences=16,
    ),
}  # fmt: skip
# Model sections of the bases.
_SMALL = {"type": "transformer", "positions": "rope", "hidden_size": 16, "num_layers": 2, "num_heads": 4}
_MOSAIC = {"type": "memory_mosaic", "hidden_size": 128, "num_layers": 2, "num_heads": 4, "num_persistent_slots": 448}
BASES: dict[str, dict[str, dict[str, Any]]] = {
    "smoke": {"transformer": _SMALL},
    "cpu": {"transformer": {**_SMALL, "hidden_size": 128, "num_layers": 4}, "memory_mosaic": _MOSAIC},
}


def plan(selection: RunSelection) -> list[Run]:
    """Base by base, seed by seed; the models of a base start from the same weights."""
    return [
        BUDGETS[selection.budget].run(model, base, section, seed)
        for seed in range(selection.seeds or 1)
        for base, section in BASES[selection.budget].items()
        for model in selection.models or MODELS
    ]
