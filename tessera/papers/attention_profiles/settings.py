"""What each budget trains, and what it measures."""

from dataclasses import dataclass
from typing import Any

from tessera.base.dataclass_io import to_json
from tessera.papers.experiment import Run
from tessera.papers.recipe_settings import RecipeSettings
from tessera.recipes.recipe import read_recipe, recipe_to_dict

# Name: its name in tables and figures.
MODELS = {
    "transformer": "Transformer, absolute positions",
    "transformer_rope": "Transformer, RoPE",
    "transformer_alibi": "Transformer, ALiBi",
    "mosaic": "Memory Mosaic",
}
POSITIONS = {"transformer": "absolute", "transformer_rope": "rope", "transformer_alibi": "alibi"}


@dataclass(frozen=True)
class ProfileSettings(RecipeSettings):
    """One training of a model of one block, and the profiles of its attention.

    Attributes:
        model: one of `MODELS`. recipe: see `RecipeSettings`. lengths: profiles are measured in texts of so many times
            the trained context (learned positions end with the first).
        sequences: validation texts that a profile is averaged over.
    """

    model: str
    recipe: dict[str, Any]
    lengths: tuple[int, ...]
    sequences: int


@dataclass(frozen=True)
class Budget:
    """One of `--budget`.

    Attributes:
        recipes: by model. overrides, mosaic_overrides: of every recipe, and of the mosaic's.
    """

    recipes: dict[str, str]
    seeds: int
    sequences: int
    overrides: tuple[str, ...] = ()
    mosaic_overrides: tuple[str, ...] = ()
    transformer_overrides: tuple[str, ...] = ()
    lengths: tuple[int, ...] = (1, 3)

    def run(self, model: str, seed: int) -> Run:
        """One run."""
        overrides = [*self.overrides, f"seed={seed}"]
        overrides += self.mosaic_overrides if model == "mosaic" else self.transformer_overrides
        if model in POSITIONS:
            overrides.append(f"model.positions={POSITIONS[model]}")
        recipe = to_json(recipe_to_dict(read_recipe(self.recipes[model], overrides)))
        return Run(f"{model}/seed {seed}", ProfileSettings(model, recipe, self.lengths, self.sequences))


DEMO = {name: "demo-mosaic" if name == "mosaic" else "demo-transformer" for name in MODELS}
BUDGETS = {
    "smoke": Budget(
        DEMO,
        seeds=1,
        sequences=3,
        overrides=(
            "model.hidden_size=16",
            "model.num_layers=1",
            "model.num_heads=2",
            "tokenizer={type: byte}",
            "data.source=novels",
            "data.context=24",
            "training.steps=2",
            "training.batch_size=2",
            "training.evaluate_sequences=2",
        ),
        mosaic_overrides=("model.num_persistent_slots=56",),
    ),
    "cpu": Budget(
        DEMO,
        seeds=2,
        sequences=500,
        overrides=(
            "model.hidden_size=128",
            "model.num_layers=1",
            "model.num_heads=8",
            "tokenizer={type: bpe, vocab_size: 2048}",
            "data.context=128",
            "training.steps=600",
            "training.batch_size=16",
            "training.warmup_steps=60",
            "training.learning_rate=3.0e-3",
            "training.evaluate_every=200",
            "training.checkpoint_every=200",
        ),
        mosaic_overrides=("model.num_persistent_slots=448",),
    ),
    "full": Budget(
        {
            "transformer": "babistories-transformer-1",
            "transformer_rope": "babistories-transformer-rope-1",
            "transformer_alibi": "babistories-transformer-alibi-1",
            "mosaic": "babistories-1",
        },
        seeds=1,
        sequences=5000,
    ),
}
