"""Many-shot classification: trained on some classes, tested on others, with up to four times the shots."""

from typing import Any

from transformers import PreTrainedModel

from tessera.models.sizes import num_parameters
from tessera.models.small_models import build_small_model
from tessera.papers.catalogue import LIBRARY
from tessera.papers.experiment import Experiment, Run, RunContext, RunSelection
from tessera.papers.many_shot import figure, report
from tessera.papers.many_shot.evaluate import evaluate
from tessera.papers.many_shot.settings import BUDGETS, MODELS, SEEDS, ManyShotSettings
from tessera.papers.task_stage import train_stages


def plan(selection: RunSelection) -> list[Run]:
    """Seed by seed, all models of a seed."""
    budget = BUDGETS[selection.budget]
    names = selection.models or MODELS
    seeds = range(selection.seeds or SEEDS[selection.budget])
    return [budget.run(name, seed) for seed in seeds for name in names]


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train on contexts that are new at every step, then test; v2 once more with its long-term memories off."""
    settings = run.configuration
    model = _model(settings).to(context.device)
    outcome: dict[str, Any] = train_stages(model, settings.stages(), context)
    outcome["parameters"] = num_parameters(model)
    outcome["scores"] = evaluate(model, settings, context)
    if settings.model == "mosaic_v2":
        model.disable_long_term_memory()
        outcome["without_long_term_memory"] = evaluate(model, settings, context)
    return outcome


def _model(settings: ManyShotSettings) -> PreTrainedModel:
    return build_small_model(
        settings.model,
        settings.seed,
        vocab_size=settings.trained_tasks()[0].vocabulary.get_vocab_size(),
        hidden_size=settings.hidden_size,
        num_layers=settings.num_layers,
        num_heads=settings.num_heads,
        max_positions=16 * settings.span,
        initialization=settings.initialization,
    )


# Memory Mosaics v2, figures 4, 6 and 11 at small size: anonymous labels, models trained on episodes.
EXPERIMENT = Experiment(
    LIBRARY["many_shot"],
    settings=ManyShotSettings,
    plan=plan,
    execute=execute,
    tables=report.tables,
    plot=figure.draw,
    models=MODELS,
    budgets=("smoke", "cpu", "full"),
)
