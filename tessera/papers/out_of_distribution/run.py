"""Out of distribution: models that were trained on stories read novels, or any text of the user's."""

from typing import Any

from tessera.data.sources import text_source
from tessera.evaluation.text import EvaluationText, evaluate_text
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.papers.catalogue import LIBRARY
from tessera.papers.experiment import Experiment, Run, RunContext, RunSelection
from tessera.papers.language_modeling.settings import KERNELS, MODELS
from tessera.papers.language_modeling.training import trained_model
from tessera.papers.out_of_distribution import figure, report
from tessera.papers.out_of_distribution.settings import TextSettings, runs_on_texts


def plan(selection: RunSelection) -> list[Run]:
    """In the order of `language_modeling`, whose models these are."""
    return runs_on_texts(selection)


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Evaluate a trained model, which is trained first unless `language_modeling` has; nats per token."""
    settings = run.configuration
    folder = trained_model(settings.trained, context)
    context.report(1.0, f"reading {settings.text}")
    source = text_source(run.data.get(settings.text, settings.text))
    text = EvaluationText(source, context=settings.trained.recipe["data"]["context"])
    model = load_model(folder).to(context.device)
    measured = evaluate_text(model, load_tokenizer(folder), text, sequences=settings.sequences)
    curve = [None if loss is None else round(loss, 4) for loss in measured["loss_by_position"]]
    numbers = {name: measured[name] for name in ("loss", "bits_per_byte", "tokens", "sequences")}
    return {**numbers, "loss_by_position": curve}


# Memory Mosaics, figure 8; Sparse Attention as Compact Kernel Regression, figure 5.
EXPERIMENT = Experiment(
    LIBRARY["out_of_distribution"],
    settings=TextSettings,
    plan=plan,
    execute=execute,
    tables=report.tables,
    plot=figure.draw,
    models=MODELS,
    kernels=KERNELS,
    takes_data=True,
)
