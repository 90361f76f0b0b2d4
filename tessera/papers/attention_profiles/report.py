"""Attention profiles: where one block of attention, or of memories, looks, within its trained length and beyond."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tessera.data.windows import ValidationWindows
from tessera.evaluation.loss import loss_by_position
from tessera.inspection import recall_weights
from tessera.models.saving.loading import load_model
from tessera.models.sizes import num_parameters
from tessera.models.transformer import context_limit
from tessera.papers.curves import Axes, panels
from tessera.papers.experiment import LIBRARY, Experiment, Record, Run, RunContext, RunSelection
from tessera.papers.language_modeling.run import POSITIONS
from tessera.papers.recipe_settings import RecipeSettings, overrides_of, recipe_mapping, trained
from tessera.papers.records import by_model, mean_of, spread
from tessera.papers.tables import SettingsRows, markdown, settings_of, with_error
from tessera.training.corpus import open_corpus
from tessera.training.loop import Report, unreported

# Name: its name in tables and figures.
MODELS = {
    "transformer": "Transformer, absolute positions",
    "transformer_rope": "Transformer, RoPE",
    "transformer_alibi": "Transformer, ALiBi",
    "mosaic": "Memory Mosaic",
}
# What a budget changes in the recipes "demo-mosaic" and "demo-transformer", and the slots of its mosaic.
OVERRIDES: dict[str, Mapping[str, Any]] = {
    "smoke": {
        "model": {"hidden_size": 16, "num_heads": 2},
        "tokenizer": "{type: byte}",
        "data": {"source": "novels", "context": 24},
        "training": {"steps": 2, "batch_size": 2, "evaluate_sequences": 2},
    },
    "cpu": {
        "model": {"hidden_size": 128, "num_heads": 8},
        "tokenizer": "{type: bpe, vocab_size: 2048}",
        "data": {"context": 128},
        "training": {"steps": 600, "batch_size": 16, "warmup_steps": 60, "learning_rate": 3e-3, "evaluate_every": 200}
        | {"checkpoint_every": 200},
    },
}
SLOTS, SEQUENCES, SEEDS = {"smoke": 56, "cpu": 448}, {"smoke": 3, "cpu": 500}, {"smoke": 1, "cpu": 2}
TRAINED = "models"  # beside the runs' folders
DIGITS = 4  # significant ones of stored weights
# Here, and in Memory Mosaics, section 7 and appendix D.
SETTINGS: SettingsRows = {
    "width": ("recipe.model.hidden_size", 768),
    "heads": ("recipe.model.num_heads", 12),
    "tokens of a training sequence": ("context", 512),
    "tokens seen in training": ("tokens", 80_000 * 512 * 512),
    "peak learning rate": ("recipe.training.learning_rate", None),
    # Long texts are fewer than `sequences` where the validation text ends.
    "texts of a profile": (
        lambda records: spread(length["texts"] for record in records for length in record.outcome["lengths"].values()),
        5000,
    ),
}
LEAST = 1e-5  # smaller weights are drawn there


@dataclass(frozen=True)
class ProfileSettings(RecipeSettings):
    """One training of a model of one block, and the profiles of its attention.

    Attributes:
        lengths: profiles are measured in texts of so many times the trained context (learned positions end with the
            first). sequences: validation texts that a profile is averaged over.
    """

    model: str
    recipe: dict[str, Any]
    lengths: tuple[int, ...]
    sequences: int


def plan(selection: RunSelection) -> list[Run]:
    """Every model, seed by seed."""
    budget, runs = selection.budget, []
    for seed, model in product(range(selection.seeds or SEEDS[budget]), selection.models or MODELS):
        name, own = "demo-mosaic", f"model.num_persistent_slots={SLOTS[budget]}"
        if model in POSITIONS:
            name, own = "demo-transformer", f"model.positions={POSITIONS[model]}"
        recipe = recipe_mapping(name, [*overrides_of(OVERRIDES[budget]), own, "model.num_layers=1", f"seed={seed}"])
        runs.append(Run(f"{model}/seed {seed}", ProfileSettings(model, recipe, (1, 3), SEQUENCES[budget])))
    return runs


def mean_profile(model: PreTrainedModel, texts: ValidationWindows, report: Report = unreported) -> Tensor:
    """(H, T): the mean weight of the last of T tokens on the token at each position, of a model of one block.

    Memory Mosaics, figures 14 and 15. A memory's pair i has the key of token i; the last token's own pair has no value
    yet, so that a mosaic gives it 0.
    """
    total = torch.zeros(())
    for number in range(len(texts)):
        ids = texts[number]["input_ids"][None].to(model.device)
        recalls = recall_weights(model, ids)
        weights = next(recall.weights[:, 0] for recall in recalls if recall.site.kind in ("attention", "contextual"))
        total = total + torch.nn.functional.pad(weights.double(), (0, ids.shape[1] - weights.shape[1]))
        report(1.0, f"{ids.shape[1]} tokens, text {number + 1}")
    return total / len(texts)


def recent_peak_width(profile: Tensor) -> float:
    """Tokens from the query until a head's recent peak has fallen halfway to the level of the older tokens.

    `profile` (T,) by position. The level is the median weight of the older half of the tokens, what the head gives
    whatever the age; the peak is the largest weight among the newer half. Linear between whole distances. NaN where the
    peak is less than twice the level: such a head has none.
    """
    weights = profile[:-1].flip(0)  # by distance 1, 2, ... from the query
    newer = max(1, len(weights) // 2)
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


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train as the recipe says, then measure the profile at every length."""
    # Runs of one budget stand beside each other, and share their tokenised text.
    settings, folder = run.configuration, context.folder.parent / TRAINED / context.folder.name
    recipe = settings.read_recipe()
    model = load_model(trained(recipe, folder, context.report)).to(context.device).eval()
    validation, longest = open_corpus(recipe, folder).validation, context_limit(model.config)
    memories = [module.contextual for module in model.modules() if hasattr(module, "contextual")]
    leaks = [leak for memory in memories for leak in memory.key_extractor.decay().tolist()]  # none of a transformer
    outcome: dict[str, Any] = {"parameters": num_parameters(model), "leaks": leaks, "lengths": {}}
    for length in (times * settings.context for times in settings.lengths):
        if longest is None or length <= longest:
            texts = ValidationWindows(validation, length, settings.sequences)
            profile = mean_profile(model, texts, context.report)
            outcome["lengths"][str(length)] = {
                "texts": len(texts),
                # Of the last `context` - 1 tokens of each text, nats per token.
                "loss": float(loss_by_position(model, texts, 1).by_position()[1 - settings.context :].mean()),
                "profile": [[float(f"{weight:.{DIGITS}g}") for weight in head] for head in profile.tolist()],
                "widths": list(map(recent_peak_width, profile)),
                "mean": describe(profile.mean(0), settings.context),
            }
    return outcome


class Head(NamedTuple):
    """A mosaic's head: its leak rate lambda and the width of its recent peak in tokens (None: it has no peak)."""

    seed: int
    head: int
    leak: float
    width: float | None


def heads(records: Mapping[str, Record]) -> list[Head]:
    """Every head of every seed's mosaic, at the trained length, slowest leak last."""
    rows = []
    for record in by_model(records, MODELS).get("mosaic", []):
        settings = record.configuration
        widths = record.outcome["lengths"][str(settings.context)]["widths"]
        pairs = enumerate(zip(record.outcome["leaks"], widths, strict=True))
        rows += [Head(settings.seed, number, leak, width) for number, (leak, width) in pairs]
    return sorted(rows, key=lambda row: row.leak)


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's: the correlation of ranks, ties sharing their mean rank. NaN for fewer than two or equal values."""
    if len(first) < 2:
        return float("nan")
    pairs = torch.tensor([first, second], dtype=torch.float64)
    ranks = (pairs[:, :, None] - pairs[:, None]).sign().mean(-1)  # up to a factor and a constant
    return float(torch.corrcoef(ranks)[0, 1])


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """The profiles, the heads, settings."""
    columns = {
        "loss at the end, nats": ("loss", ".3f"),
        "first token, times the mean weight": ("first", ".2f"),
        "share of the newest eighth of a context": ("newest", ".3f"),
        "unevenness between": ("unevenness", ".2f"),
        "share beyond the trained length": ("beyond", ".3f"),
        "if even": ("even", ".3f"),
    }
    rows = []
    for name, seeds in by_model(records, MODELS).items():
        for length in sorted(seeds[0].outcome["lengths"], key=int):
            measured = [record.outcome["lengths"][length] for record in seeds]
            rows.append([MODELS[name], length, len(seeds)])
            for quantity, form in columns.values():
                values = [{"loss": of_seed["loss"], **of_seed["mean"]}[quantity] for of_seed in measured]
                values = values[:1] if quantity == "even" else values  # which is the same for all seeds
                rows[-1].append(with_error(None if None in values else mean_of(values), form))
    peaks, leaks, widths = [], [], []
    for seed, head, leak, width in heads(records):
        peaks.append([seed, head, f"{leak:.3f}", "no peak" if width is None else f"{width:.1f}"])
        if width is not None:
            leaks.append(leak)
            widths.append(width)
    if peaks:
        correlation = rank_correlation(leaks, widths)
        peaks.append(["all", f"{len(leaks)} with a peak", "rank correlation", f"{correlation:.2f}"])
    return {
        "Profiles": markdown(["model", "tokens", "seeds", *columns], rows),
        "Recent peak and leak": markdown(["seed", "head", "leak rate λ", "width of the recent peak, tokens"], peaks),
        "Settings": settings_of(records.values(), SETTINGS),
    }


def plot(records: Mapping[str, Record], path: Path) -> None:
    """The first seed of each model: rows are lengths, columns models; below, peaks against leaks of every head."""
    groups = {name: seeds[0] for name, seeds in by_model(records, MODELS).items()}
    lengths = sorted({int(length) for record in groups.values() for length in record.outcome["lengths"]})
    rows, columns = len(lengths) + 1, len(MODELS)
    title = "Weight of the last token on each position: mean over texts; lines are heads, dotted their mean"
    with panels(path, 3.6 * columns, 3.0 * rows, rows, columns, title) as axes:
        for axis, (length, name) in zip(axes, product(lengths, MODELS)):
            # Learned positions end with the trained ones.
            if name in groups and (measured := groups[name].outcome["lengths"].get(str(length))):
                _draw_profile(axis, measured["profile"], groups[name].configuration.context)
                axis.set_title(f"{MODELS[name]}, {length} tokens", fontsize=9)
        axis, every = axes[-columns], [head for head in heads(records) if head.width is not None]
        axis.set(xlabel="leak rate λ of the head", ylabel="width of its recent peak, tokens")
        axis.set_title("Memory Mosaic, every head of every seed", fontsize=9)
        for seed in sorted({head.seed for head in every}):
            own = [(head.leak, head.width) for head in every if head.seed == seed]
            axis.plot(*zip(*own), "o", label=f"seed {seed}")


def _draw_profile(axis: Axes, heads: Sequence[Sequence[float]], context: int) -> None:
    for weights in heads:
        axis.plot([max(weight, LEAST) for weight in weights], lw=0.8)
    mean = [sum(weights) / len(weights) for weights in zip(*heads)]
    axis.plot([max(weight, LEAST) for weight in mean], ":", color="black", lw=2)
    if len(mean) > context:
        axis.axvline(len(mean) - context, color="gray", lw=0.8, ls="--")
    axis.axhline(1 / len(mean), color="gray", lw=0.6)
    axis.set(xlabel="position", yscale="log", ylim=(LEAST, 1.3))
    axis.minorticks_off()  # those of ten axes take seconds


RECIPES = "The published trainings are recipes: `tessera train babistories-1 data.source=PATH`, for example."
ABOUT = LIBRARY["attention_profiles"]
EXPERIMENT = Experiment(ABOUT, ProfileSettings, plan, execute, tables, plot, tuple(MODELS), published=RECIPES)
