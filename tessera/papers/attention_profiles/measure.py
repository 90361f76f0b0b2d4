"""One model of one block: trained by its recipe, and what is measured of it."""

from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from tessera.data.windows import Split, ValidationWindows
from tessera.models.saving.loading import load_model
from tessera.models.sizes import num_parameters
from tessera.models.transformer import context_limit
from tessera.papers.attention_profiles.profiles import describe, mean_profile, recent_peak_width
from tessera.papers.attention_profiles.settings import ProfileSettings
from tessera.papers.experiment import RunContext
from tessera.training.corpus import open_corpus
from tessera.training.overwrite import RESULT
from tessera.training.run import train

MODELS = "models"
# Significant digits of stored weights.
DIGITS = 4


def train_and_measure(settings: ProfileSettings, context: RunContext) -> dict[str, Any]:
    """The trained model's loss, and its profile at every length: JSON-ready."""
    # Runs of one budget stand beside each other, and share their tokenised text.
    recipe, folder = settings.read_recipe(), context.folder.parent / MODELS / context.folder.name
    if not (folder / RESULT).is_file():
        context.report(0.0, "training")
        train(recipe, folder, resume=True, progress=False)
    model = load_model(folder).to(context.device).eval()
    validation = open_corpus(recipe, folder).validation
    outcome: dict[str, Any] = {"parameters": num_parameters(model), "leaks": _leaks(model), "lengths": {}}
    longest = context_limit(model.config)
    for times in settings.lengths:
        length = times * settings.context
        if longest is None or length <= longest:
            outcome["lengths"][str(length)] = _measured(model, validation, settings, length, context)
    return outcome


def _measured(
    model: PreTrainedModel, validation: Split, settings: ProfileSettings, length: int, context: RunContext
) -> dict[str, Any]:
    def report(done: int) -> None:
        context.report(1.0, f"{length} tokens, text {done}")

    texts = ValidationWindows(validation, length, settings.sequences)
    profile = mean_profile(model, texts, report)
    return {
        "texts": len(texts),
        "loss": _last_loss(model, texts, settings.context),
        "profile": [[float(f"{weight:.{DIGITS}g}") for weight in head] for head in profile.tolist()],
        "widths": [None if width != width else width for width in map(recent_peak_width, profile)],
        "mean": {name: None if value != value else value for name, value in _described(profile, settings).items()},
    }


def _described(profile: torch.Tensor, settings: ProfileSettings) -> dict[str, float]:
    return describe(profile.mean(0), settings.context)


@torch.no_grad()
def _last_loss(model: PreTrainedModel, texts: ValidationWindows, context: int) -> float:
    """Nats per token of the last `context` - 1 tokens of each text."""
    total, count = 0.0, 0
    for number in range(len(texts)):
        ids = texts[number]["input_ids"][None].to(model.device)
        logits = model(input_ids=ids, use_cache=False, logits_to_keep=context).logits[0]
        total += float(cross_entropy(logits[:-1].float(), ids[0, -context + 1 :], reduction="sum"))
        count += context - 1
    return total / count


def _leaks(model: PreTrainedModel) -> list[float]:
    """lambda of each head's leaky average of a mosaic's contextual memory; none of a transformer."""
    memories = [module.contextual for module in model.modules() if hasattr(module, "contextual")]
    return [leak for memory in memories for leak in memory.key_extractor.decay().tolist()]
