"""Attention profiles: where one block of attention, or of memories, looks, within its trained length and beyond.

Memory Mosaics, figures 14 to 16.
"""

from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

from tessera.data.windows import Split, ValidationWindows
from tessera.models.saving.loading import load_model
from tessera.models.sizes import num_parameters
from tessera.models.transformer import context_limit
from tessera.papers.attention_profiles import report
from tessera.papers.attention_profiles.profiles import describe, mean_profile, recent_peak_width
from tessera.papers.attention_profiles.settings import MODELS, ProfileSettings, plan
from tessera.papers.catalogue import LIBRARY
from tessera.papers.experiment import Experiment, Run, RunContext
from tessera.training.corpus import open_corpus
from tessera.training.overwrite import RESULT
from tessera.training.run import train

TRAINED = "models"  # beside the runs' folders
DIGITS = 4  # significant ones of stored weights


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train as the recipe says, then measure the profile at every length."""
    # Runs of one budget stand beside each other, and share their tokenised text.
    settings, folder = run.configuration, context.folder.parent / TRAINED / context.folder.name
    recipe = settings.read_recipe()
    if not (folder / RESULT).is_file():
        context.report(0.0, "training")
        train(recipe, folder, resume=True, progress=False)
    model = load_model(folder).to(context.device).eval()
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
        "loss": _last_loss(model, texts, settings.context),
        "profile": [[float(f"{weight:.{DIGITS}g}") for weight in head] for head in profile.tolist()],
        "widths": list(map(recent_peak_width, profile)),
        "mean": describe(profile.mean(0), settings.context),
    }


@torch.no_grad()
def _last_loss(model: PreTrainedModel, texts: ValidationWindows, context: int) -> float:
    """Nats per token of the last `context` - 1 tokens of each text."""
    total = 0.0
    for number in range(len(texts)):
        ids = texts[number]["input_ids"][None].to(model.device)
        logits = model(input_ids=ids, use_cache=False, logits_to_keep=context).logits[0]
        total += float(cross_entropy(logits[:-1].float(), ids[0, -context + 1 :]))
    return total / len(texts)


def _leaks(model: PreTrainedModel) -> list[float]:
    """lambda of each head's leaky average of a mosaic's contextual memory; none of a transformer."""
    memories = [module.contextual for module in model.modules() if hasattr(module, "contextual")]
    return [leak for memory in memories for leak in memory.key_extractor.decay().tolist()]


EXPERIMENT = Experiment(
    LIBRARY["attention_profiles"],
    settings=ProfileSettings,
    plan=plan,
    execute=execute,
    tables=report.tables,
    plot=report.plot,
    models=tuple(MODELS),
    published="The published trainings are recipes: `tessera train babistories-1 data.source=PATH`, for example.",
)
