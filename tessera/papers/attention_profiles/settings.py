"""What each budget of attention profiles trains, and what it measures."""

from dataclasses import dataclass
from typing import Any

from tessera.papers.experiment import Run, RunSelection
from tessera.papers.language_modeling.settings import POSITIONS
from tessera.papers.recipe_settings import RecipeSettings, recipe_mapping

# Name: its name in tables and figures.
MODELS = {
    "transformer": "Transformer, absolute positions",
    "transformer_rope": "Transformer, RoPE",
    "transformer_alibi": "Transformer, ALiBi",
    "mosaic": "Memory Mosaic",
}


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


# What a budget changes in the recipes "demo-mosaic" and "demo-transformer", and the slots of its mosaic.
OVERRIDES = {
    "smoke": (
        "model.hidden_size=16",
        "model.num_heads=2",
        "tokenizer={type: byte}",
        "data.source=novels",
        "data.context=24",
        "training.steps=2",
        "training.batch_size=2",
        "training.evaluate_sequences=2",
    ),
    "cpu": (
        "model.hidden_size=128",
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
}
SLOTS, SEQUENCES, SEEDS = {"smoke": 56, "cpu": 448}, {"smoke": 3, "cpu": 500}, {"smoke": 1, "cpu": 2}


def plan(selection: RunSelection) -> list[Run]:
    """Every model, seed by seed."""
    budget = selection.budget
    runs = []
    for seed in range(selection.seeds or SEEDS[budget]):
        for model in selection.models or MODELS:
            name, own = "demo-mosaic", f"model.num_persistent_slots={SLOTS[budget]}"
            if model in POSITIONS:
                name, own = "demo-transformer", f"model.positions={POSITIONS[model]}"
            recipe = recipe_mapping(name, [*OVERRIDES[budget], own, "model.num_layers=1", f"seed={seed}"])
            runs.append(Run(f"{model}/seed {seed}", ProfileSettings(model, recipe, (1, 3), SEQUENCES[budget])))
    return runs
