"""Associative retrieval, trained by a curriculum and measured far past its trained length (ARMT, section 3)."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tessera.evaluation.questions import answer_loss, is_segmented, right_answers
from tessera.models.sizes import num_parameters
from tessera.papers.associative_retrieval import AssociativeRetrieval, capacity, capacity_error, report
from tessera.papers.associative_retrieval.settings import (
    BUDGETS,
    BY_GRADIENT,
    KEY_SIZE,
    NAMES,
    SEEDS,
    RetrievalSettings,
    build,
)
from tessera.papers.catalogue import LIBRARY
from tessera.papers.experiment import Experiment, Run, RunContext, RunSelection
from tessera.recipes.sections import Stage
from tessera.tasks.task import estimate, generator_of
from tessera.training.curriculum import train_stages

# Of held-out contexts that are read at once: at most so many, and at most so many pairs of all of them.
CONTEXTS_AT_ONCE, PAIRS_AT_ONCE = 16, 2000


def plan(selection: RunSelection) -> list[Run]:
    """Rewrite first, seed by seed; a memory that is written by gradient descent remembers alone, as published."""
    seeds, models = range(selection.seeds or SEEDS[selection.budget]), selection.models or tuple(NAMES)
    by_rule = BUDGETS[selection.budget]
    points = product(seeds, ("rewrite", "remember"), models)
    return [by_rule[r].run(name, seed) for seed, r, name in points if r == "remember" or name not in BY_GRADIENT]


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train through the curriculum, then measure."""
    settings, seed = run.configuration, run.configuration.seed
    model = build(settings.model, settings.sizes, seed).to(context.device)

    def loss_at(stage: Stage, number: int, step: int) -> Tensor:
        task = settings.task(stage.length_at(step, seed), stage.settings[KEY_SIZE])
        generator = generator_of(task, (seed * 100 + number) * 1_000_000 + step, "train")
        return mean_loss(model, task, settings.batch_size, settings.questions, generator)

    def score(stage: Stage) -> float:
        task = settings.task(stage.length, stage.settings[KEY_SIZE])
        sizes = settings.validation_contexts, settings.test_questions
        return exact_match(model, task, *sizes, seed, "validation").mean().item()

    stages = train_stages(model, settings.curriculum, settings.fit, context.folder, loss_at, score, context.report)
    return {"parameters": num_parameters(model), "stages": stages} | _measure(model, settings, context)


def _measure(model: PreTrainedModel, settings: RetrievalSettings, context: RunContext) -> dict[str, Any]:
    """Exact match and capacity at every measured number of pairs, with standard errors over contexts."""
    trained_pairs = settings.curriculum.stages[-1].length
    outcome: dict[str, Any] = {"exact_match": {}, "capacity": {}, "trained_pairs": trained_pairs}
    for pairs in settings.measured:
        context.report(1.0, f"measuring {pairs} pairs")
        task = settings.task(pairs)
        contexts = settings.test_contexts if pairs <= 10 else -(-settings.test_contexts // 4)
        # A model without a memory reads the whole text again for each question.
        is_quick = pairs <= 10 or is_segmented(model)
        num_questions = settings.test_questions if is_quick else -(-settings.test_questions // 8)
        share = estimate(exact_match(model, task, contexts, num_questions, settings.seed, "test"))
        outcome["exact_match"][str(pairs)] = share
        outcome["capacity"][str(pairs)] = [
            capacity(share.mean, pairs, task.num_symbols),
            capacity_error(share.standard_error, pairs, task.num_symbols),
        ]
    longest = settings.task(max(settings.measured))
    outcome["norms"] = memory_norms(model, longest, settings.measured, settings.seed)
    return outcome


def mean_loss(
    model: PreTrainedModel, task: AssociativeRetrieval, contexts: int, questions: int, generator: torch.Generator
) -> Tensor:
    """Cross entropy in nats of the answers."""
    if is_segmented(model):
        model.config.segment_size = task.segment_size
    total, count = answer_loss(model, task.sample_questions(contexts, questions, generator))
    return total / count


@torch.no_grad()
def exact_match(
    model: PreTrainedModel, task: AssociativeRetrieval, contexts: int, num_questions: int, seed: int, split: str
) -> Tensor:
    """The share of right answers of each of so many held-out contexts: questions to one context are not independent."""
    if is_segmented(model):
        model.config.segment_size = task.segment_size
    generator, shares = generator_of(task, seed, split), []
    together = max(1, min(CONTEXTS_AT_ONCE, PAIRS_AT_ONCE // task.num_pairs))
    for start in range(0, contexts, together):
        batch = task.sample_questions(min(together, contexts - start), num_questions, generator)
        shares.append(right_answers(model, batch))
    return torch.cat(shares)


@torch.no_grad()
def memory_norms(model: PreTrainedModel, task: AssociativeRetrieval, lengths: Sequence[int], seed: int) -> dict:
    """Mean norms of the normaliser z and of the matrix A, over layers and contexts, after each of `lengths` pairs.

    The correction of the normaliser is there to keep them from growing (ARMT, appendix). Empty for models without
    association matrices.
    """
    if not hasattr(model, "memories"):
        return {}
    model.config.segment_size = task.segment_size
    context = task.sample_questions(CONTEXTS_AT_ONCE, 1, generator_of(task, seed, "test")).contexts.to(model.device)
    norms: dict[str, dict[str, float]] = {"normaliser": {}, "matrix": {}}
    state, read = None, 0
    for length in sorted(n for n in lengths if n <= task.num_pairs):
        tokens = context[:, read * task.segment_size : length * task.segment_size]
        state, read = model(input_ids=tokens, memory_state=state, skip_logits=True).memory_state, length
        norms["normaliser"][str(length)] = state.z.norm(dim=-1).mean().item()
        norms["matrix"][str(length)] = state.A.flatten(2).norm(dim=-1).mean().item()
    return norms


EXPERIMENT = Experiment(
    LIBRARY["associative_retrieval"], RetrievalSettings, plan, execute, report.tables, report.plot, tuple(NAMES)
)
