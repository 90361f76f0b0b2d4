"""Associative retrieval, trained by a curriculum and measured far past its trained length (ARMT, section 3)."""

from typing import Any

import torch
from torch import nn

from tessera.models.sizes import num_parameters
from tessera.papers.associative_retrieval import RULES, capacity, capacity_error, figure, models, questions, report
from tessera.papers.associative_retrieval.settings import BUDGETS, KEY_SIZE, RetrievalSettings
from tessera.papers.catalogue import LIBRARY
from tessera.papers.experiment import Experiment, Run, RunContext, RunSelection
from tessera.tasks.task import estimate, generator_of
from tessera.training.curriculum import Stage, train_stages


def plan(selection: RunSelection) -> list[Run]:
    """Rewrite first, seed by seed."""
    budget = BUDGETS[selection.budget]
    names = selection.models or models.MODELS
    runs = []
    for seed in range(selection.seeds or budget.seeds):
        for rule in reversed(RULES):
            runs += [budget.run(name, rule, seed) for name in names]
        if "armt" in names:
            runs += [budget.run("armt", "rewrite", seed, label) for label in budget.ablation]
    return runs


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train through the curriculum, then measure."""
    settings, seed = run.configuration, run.configuration.seed
    model = models.build(settings.model, settings.sizes, seed).to(context.device)

    def loss_at(stage: Stage, number: int, step: int) -> torch.Tensor:
        task = settings.task(stage.length_at(step, seed), stage.settings[KEY_SIZE])
        generator = generator_of(task, (seed * 100 + number) * 1_000_000 + step, "train")
        contexts, with_answers = task.sample_questions(settings.batch_size, settings.questions, generator)
        end_token = task.vocab_size if settings.end_token else None
        return questions.loss(model, contexts, with_answers, task.segment_size, end_token)

    def score(stage: Stage) -> float:
        task = settings.task(stage.length, stage.settings[KEY_SIZE])
        sizes = settings.validation_contexts, settings.test_questions
        return questions.exact_match(model, task, *sizes, seed, "validation").mean().item()

    stages = train_stages(model, settings.curriculum, settings.fit, context.folder, loss_at, score, context.report)
    return {"parameters": num_parameters(model), "stages": stages} | _measure(model, settings, context)


def _measure(model: nn.Module, settings: RetrievalSettings, context: RunContext) -> dict[str, Any]:
    """Exact match and capacity at every measured number of pairs, with standard errors over contexts."""
    trained_pairs = settings.curriculum.stages[-1].length
    outcome: dict[str, Any] = {"exact_match": {}, "capacity": {}, "trained_pairs": trained_pairs}
    for pairs in settings.measured:
        context.report(1.0, f"measuring {pairs} pairs")
        task = settings.task(pairs)
        contexts = settings.test_contexts if pairs <= 10 else -(-settings.test_contexts // 4)
        # A model without a memory reads the whole text again for each question.
        is_quick = pairs <= 10 or questions.is_segmented(model)
        num_questions = settings.test_questions if is_quick else -(-settings.test_questions // 8)
        share = estimate(questions.exact_match(model, task, contexts, num_questions, settings.seed, "test"))
        outcome["exact_match"][str(pairs)] = share
        outcome["capacity"][str(pairs)] = [
            capacity(share.mean, pairs, task.num_symbols),
            capacity_error(share.standard_error, pairs, task.num_symbols),
        ]
    longest = settings.task(max(settings.measured))
    outcome["norms"] = questions.memory_norms(model, longest, settings.measured, settings.seed)
    return outcome


# ARMT and its relatives on remember and rewrite.
EXPERIMENT = Experiment(
    LIBRARY["associative_retrieval"],
    settings=RetrievalSettings,
    plan=plan,
    execute=execute,
    tables=report.tables,
    plot=lambda records, path: figure.draw(report.curves(records), path),
    models=models.MODELS,
    budgets=("smoke", "cpu", "full"),
)
