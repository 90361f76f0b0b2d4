"""Attention profiles: where one block of attention, or of memories, looks, within its trained length and beyond.

Memory Mosaics, figures 14 to 16.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tessera.data.windows import Split, ValidationWindows
from tessera.evaluation.loss import loss_by_position
from tessera.inspection import recall_weights
from tessera.models.saving.loading import load_model
from tessera.models.sizes import num_parameters
from tessera.models.transformer import context_limit
from tessera.papers.experiment import Run, RunContext, RunSelection
from tessera.papers.language_modeling.run import POSITIONS
from tessera.papers.recipe_settings import RecipeSettings, recipe_mapping, trained
from tessera.training.corpus import open_corpus

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


# The older half of the tokens says what a head gives whatever the age.
OLDER_HALF = 0.5


def mean_profile(
    model: PreTrainedModel, texts: ValidationWindows, report: Callable[[int], None] = lambda done: None
) -> Tensor:
    """(H, T): the mean weight of the last of T tokens on the token at each position, of a model of one block.

    Memory Mosaics, figures 14 and 15. A memory's pair i has the key of token i; the last token's own pair has no value
    yet, so that a mosaic gives it 0. `report` hears how many texts are done.
    """
    total = torch.zeros(())
    for number in range(len(texts)):
        ids = texts[number]["input_ids"][None].to(model.device)
        recalls = recall_weights(model, ids)
        weights = next(recall.weights[:, 0] for recall in recalls if recall.site.kind in ("attention", "contextual"))
        total = total + torch.nn.functional.pad(weights.double(), (0, ids.shape[1] - weights.shape[1]))
        report(number + 1)
    return total / len(texts)


def recent_peak_width(profile: Tensor) -> float:
    """Tokens from the query until a head's recent peak has fallen halfway to the level of the older tokens.

    `profile` (T,) by position. The level is the median weight of the older half of the tokens; the peak is the largest
    weight among the newer half. Linear between whole distances. NaN where the peak is less than twice the level: such a
    head has none.
    """
    weights = profile[:-1].flip(0)  # by distance 1, 2, ... from the query
    newer = max(1, int(len(weights) * (1 - OLDER_HALF)))
    level = weights[newer:].median() if newer < len(weights) else weights.new_zeros(())
    top = int(weights[:newer].argmax())
    if weights[top] < 2 * level or weights[top] <= 0:
        return float("nan")
    half = (weights[top] + level) / 2
    for distance in range(top, len(weights)):
        if weights[distance] < half:
            before, after = weights[distance - 1], weights[distance]
            return distance + float((before - half) / (before - after))
    return float(len(weights))


def describe(profile: Tensor, context: int) -> dict[str, float]:
    """What a mean profile (T,) over heads is like, for a model trained on `context` tokens.

    - first: weight of the first token, as a multiple of the mean weight of all tokens (an attention sink).
    - newest: share of the weight on the newest eighth of a context.
    - beyond: share of the weight on tokens farther than a context; NaN where there are none. even: the share that equal
      weights would give them.
    - unevenness: standard deviation over mean of the weights between the first token and the newest eighth.
    """
    length, recent = len(profile), max(1, context // 8)
    middle = profile[1 : length - recent]
    beyond = profile[: max(0, length - context)]
    return {
        "first": float(profile[0] / profile.mean()),
        "newest": float(profile[length - recent :].sum() / profile.sum()),
        "beyond": float(beyond.sum() / profile.sum()) if len(beyond) else float("nan"),
        "even": len(beyond) / length if len(beyond) else float("nan"),
        "unevenness": float(middle.std() / middle.mean()),
    }


TRAINED = "models"  # beside the runs' folders
DIGITS = 4  # significant ones of stored weights


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train as the recipe says, then measure the profile at every length."""
    # Runs of one budget stand beside each other, and share their tokenised text.
    settings, folder = run.configuration, context.folder.parent / TRAINED / context.folder.name
    recipe = settings.read_recipe()
    model = load_model(trained(recipe, folder, context.report)).to(context.device).eval()
    validation = open_corpus(recipe, folder).validation
    longest = context_limit(model.config)
    lengths = [times * settings.context for times in settings.lengths]
    return {
        "parameters": num_parameters(model),
        "leaks": _leaks(model),
        "lengths": {
            str(length): _measured(model, validation, settings, length, context)
            for length in lengths
            if longest is None or length <= longest
        },
    }


def _measured(
    model: PreTrainedModel, validation: Split, settings: ProfileSettings, length: int, context: RunContext
) -> dict[str, Any]:
    texts = ValidationWindows(validation, length, settings.sequences)
    profile = mean_profile(model, texts, lambda done: context.report(1.0, f"{length} tokens, text {done}"))
    return {
        "texts": len(texts),
        # Of the last `context` - 1 tokens of each text, nats per token.
        "loss": float(loss_by_position(model, texts, 1).by_position()[1 - settings.context :].mean()),
        "profile": [[float(f"{weight:.{DIGITS}g}") for weight in head] for head in profile.tolist()],
        "widths": list(map(recent_peak_width, profile)),
        "mean": describe(profile.mean(0), settings.context),
    }


def _leaks(model: PreTrainedModel) -> list[float]:
    """lambda of each head's leaky average of a mosaic's contextual memory; none of a transformer."""
    memories = [module.contextual for module in model.modules() if hasattr(module, "contextual")]
    return [leak for memory in memories for leak in memory.key_extractor.decay().tolist()]
