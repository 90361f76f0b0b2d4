"""A trained language model: from the folder that holds it, or trained now."""

import hashlib
import json
from pathlib import Path
from typing import Any

from tessera.base.dataclass_io import to_json
from tessera.base.precision import resolve_precision
from tessera.evaluation.text import evaluate_text
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.papers.experiment import Run, RunContext
from tessera.papers.language_modeling.settings import LanguageSettings
from tessera.training.evaluation_text import evaluation_text
from tessera.training.metrics import MetricsFile
from tessera.training.overwrite import METRICS, RESULT
from tessera.training.run import train

MODELS = "language_models"


def trained_model(settings: LanguageSettings, context: RunContext, data: str | None = None) -> Path:
    """The folder of the model that `settings` describe, trained unless it is there; a killed training goes on.

    All experiments that keep their checkpoints beside each other share these models. `data`: where the training text
    lies, if it is not the recipe's own.
    """
    text = json.dumps([to_json(settings.recipe), settings.text], sort_keys=True)
    # checkpoints/EXPERIMENT/BUDGET/RUN is where a run works
    models = context.folder.parents[2] / MODELS
    name = f"{settings.name.replace(' ', '-')}-{settings.num_layers}"
    folder = models / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
    if not (folder / RESULT).is_file():
        train(settings.read_recipe(data), folder, resume=True, progress=False, report=context.report)
    return folder


def train_and_evaluate(run: Run, context: RunContext) -> dict[str, Any]:
    """Curves of the training, loss on the validation text at its end, and that by position, in nats per token."""
    settings = run.configuration
    folder = trained_model(settings, context, next(iter(run.data.values()), None))
    lines = MetricsFile(folder / METRICS).read()
    context.report(1.0, "validating")
    model = load_model(folder).to(context.device)
    report = evaluate_text(model, load_tokenizer(folder), evaluation_text(folder), sequences=settings.sequences)
    per_step = settings.tokens // settings.recipe["training"]["steps"]
    return {
        "precision": resolve_precision(settings.recipe["training"]["precision"]),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "tokens": settings.tokens,
        "training": [[line["tokens"], round(line["loss"], 4)] for line in lines if line.get("loss") is not None],
        "validation": [
            [line["step"] * per_step, round(line["validation_loss"], 4)] for line in lines if "validation_loss" in line
        ],
        "tokens_per_second": [line["tokens_per_second"] for line in lines if line.get("tokens_per_second")][-1],
        "loss": report["loss"],
        "bits_per_byte": report["bits_per_byte"],
        "validation_tokens": report["tokens"],
        "loss_by_position": [None if loss is None else round(loss, 4) for loss in report["loss_by_position"]],
    }
