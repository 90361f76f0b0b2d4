"""Language models on stories: mosaic and transformer by depth, and every kernel.

Memory Mosaics, figures 7 and 13; Sparse Attention as Compact Kernel Regression, figures 2 and 3.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from tessera.base.dataclass_io import to_json
from tessera.base.precision import resolve_precision
from tessera.evaluation.text import evaluate_text
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.models.sizes import num_parameters
from tessera.papers.catalogue import LIBRARY
from tessera.papers.experiment import Experiment, Run, RunContext
from tessera.papers.language_modeling import report
from tessera.papers.language_modeling.settings import KERNELS, MODELS, LanguageSettings, plan
from tessera.training.metrics import MetricsFile
from tessera.training.overwrite import METRICS, RESULT
from tessera.training.run import train
from tessera.training.run_data import evaluation_text

SHARED_MODELS = "language_models"


def trained_model(settings: LanguageSettings, context: RunContext, data: str | None = None) -> Path:
    """The folder of the model that `settings` describe, trained unless it is there; a killed training goes on.

    All experiments that keep their checkpoints beside each other share these models. `data`: where the training text
    lies, if it is not the recipe's own.
    """
    text = json.dumps([to_json(settings.recipe), settings.text], sort_keys=True)
    # checkpoints/EXPERIMENT/BUDGET/RUN is where a run works
    models = context.folder.parents[2] / SHARED_MODELS
    name = f"{settings.name.replace(' ', '-')}-{settings.num_layers}"
    folder = models / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"
    if not (folder / RESULT).is_file():
        train(settings.read_recipe(data), folder, resume=True, progress=False, report=context.report)
    return folder


PUBLISHED_RECIPES = "The published trainings are recipes: `tessera train babistories-8 data.source=PATH`, for example."


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Curves of the training, loss on the validation text at its end, and that by position, in nats per token."""
    settings = run.configuration
    folder = trained_model(settings, context, next(iter(run.data.values()), None))
    lines = MetricsFile(folder / METRICS).read()
    context.report(1.0, "validating")
    model = load_model(folder).to(context.device)
    measured = evaluate_text(model, load_tokenizer(folder), evaluation_text(folder), sequences=settings.sequences)
    per_step = settings.tokens // settings.recipe["training"]["steps"]
    return {
        "precision": resolve_precision(settings.recipe["training"]["precision"]),
        "parameters": num_parameters(model),
        "tokens": settings.tokens,
        "training": [[line["tokens"], round(line["loss"], 4)] for line in lines if line.get("loss") is not None],
        "validation": [
            [line["step"] * per_step, round(line["validation_loss"], 4)] for line in lines if "validation_loss" in line
        ],
        "tokens_per_second": [line["tokens_per_second"] for line in lines if line.get("tokens_per_second")][-1],
        "loss": measured["loss"],
        "bits_per_byte": measured["bits_per_byte"],
        "validation_tokens": measured["tokens"],
        "loss_by_position": rounded(measured["loss_by_position"]),
    }


def rounded(losses: list[float | None]) -> list[float | None]:
    """With four decimals; None where no token stands."""
    return [None if loss is None else round(loss, 4) for loss in losses]


EXPERIMENT = Experiment(
    LIBRARY["language_modeling"],
    settings=LanguageSettings,
    plan=plan,
    execute=execute,
    tables=report.tables,
    plot=report.plot,
    models=MODELS,
    kernels=KERNELS,
    published=PUBLISHED_RECIPES,
    takes_data=True,
    long=True,
)
