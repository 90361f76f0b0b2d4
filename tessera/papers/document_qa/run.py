"""Document questions: trained on short samples, asked about longer ones, tuned at a long one, asked again."""

from typing import Any

import torch
from transformers import PreTrainedModel

from tessera.models.sizes import num_parameters
from tessera.models.small_models import build_small_model
from tessera.papers.catalogue import LIBRARY
from tessera.papers.document_qa import figure, report
from tessera.papers.document_qa.settings import BUDGETS, MODELS, SEEDS, DocumentSettings
from tessera.papers.experiment import Experiment, Run, RunContext, RunSelection
from tessera.papers.task_stage import train_stages
from tessera.tasks.task import estimate

TEST_SEED = 1_000_003


def plan(selection: RunSelection) -> list[Run]:
    """Seed by seed, all models of a seed."""
    budget = BUDGETS[selection.budget]
    names = selection.models or MODELS
    seeds = range(selection.seeds or SEEDS[selection.budget])
    return [budget.run(name, seed) for seed in seeds for name in names]


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train, test, tune and test; v2 each time once more with its long-term memories off."""
    settings = run.configuration
    task = settings.task_at(settings.length)
    model: PreTrainedModel = build_small_model(
        settings.model,
        settings.seed,
        vocab_size=task.vocab_size,
        hidden_size=settings.hidden_size,
        num_layers=settings.num_layers,
        num_heads=settings.num_heads,
        max_positions=16 * settings.span,
        initialization=settings.initialization,
    ).to(context.device)

    def test(stage: str) -> dict[str, Any]:
        """The scores after a stage; none after the early ones."""
        lengths = {"training": settings.test_lengths, "tuning": settings.tuned_test_lengths}.get(stage)
        if lengths is None:
            return {}
        outcome = {"scores": _scores(model, settings, lengths, context)}
        if settings.model == "mosaic_v2":
            model.disable_long_term_memory()
            outcome["without_long_term_memory"] = _scores(model, settings, lengths, context)
            model.enable_long_term_memory()
        return outcome

    return {"parameters": num_parameters(model), **train_stages(model, settings.stages(), context, test)}


@torch.no_grad()
def _scores(
    model: PreTrainedModel, settings: DocumentSettings, lengths: tuple[int, ...], context: RunContext
) -> dict[str, list[float]]:
    """Length -> mean, standard error over samples and count of the share of right answers."""
    scores = {}
    for length in lengths:
        task, left, shares = settings.task_at(length), settings.num_tests(length), []
        seed = TEST_SEED
        while left > 0:
            examples = task.sample(min(left, max(1, 16_384 // length)), seed, "test")
            logits = model(input_ids=examples.tokens.to(context.device)).logits
            shares.append(task.scores(logits.float(), examples)[task.main_score])
            left, seed = left - len(examples), seed + 1
        scores[str(length)] = list(estimate(torch.cat(shares)))
    return scores


# Memory Mosaics v2, tables 3, 4 and 7 at small size.
EXPERIMENT = Experiment(
    LIBRARY["document_qa"],
    settings=DocumentSettings,
    plan=plan,
    execute=execute,
    tables=report.tables,
    plot=lambda records, path: figure.draw(report.curves(records), path),
    models=MODELS,
    budgets=("smoke", "cpu", "full"),
)
