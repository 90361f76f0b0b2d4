"""BABILong, trained by a curriculum and measured far past the trained length (ARMT, section 4)."""

import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from tessera.evaluation.questions import right_answers
from tessera.models.armt.modeling import ARMTForCausalLM
from tessera.models.sizes import num_parameters
from tessera.papers.babilong import report
from tessera.papers.babilong.sample import RESERVED
from tessera.papers.babilong.settings import BUDGETS, LAST_SEGMENT, MODELS, UNSEEN, WHOLE_TEXT, BabilongSettings
from tessera.papers.babilong.stories import LENGTHS, PLAIN_FACT
from tessera.papers.babilong.task import BABILong
from tessera.papers.babilong.writes import written_facts, written_noise
from tessera.papers.catalogue import LIBRARY
from tessera.papers.experiment import Experiment, Run, RunContext, RunSelection
from tessera.recipes.sections import Stage
from tessera.tasks.question_answering import QuestionBatch, question_task
from tessera.tasks.task import estimate
from tessera.training.curriculum import train_stages_of
from tessera.training.initial_model import starting_model
from tessera.training.staged_data import StagedQuestions

READ_AT_ONCE = 1 << 22  # tokens of the contexts that are read side by side, segment by segment or the last alone
NOISE_SEGMENTS = 1024
PUBLISHED_SHARE = 0.2  # of facts in a sample, at most
WHOLE_AT_ONCE = 1 << 18  # by a model that reads the whole text, which it does for each question


def plan(selection: RunSelection) -> list[Run]:
    """QA1 of all models first; the other kinds by the model that is best in long texts, or else by the first."""
    budget = BUDGETS[selection.budget]
    names = selection.models or tuple(MODELS)
    best = UNSEEN if UNSEEN in names else names[0]
    others = [kind for kind in budget.kinds[1:] if kind in MODELS[best].recipes]
    runs = [*((name, budget.kinds[0]) for name in names), *((best, kind) for kind in others)]
    seeds = range(selection.seeds or budget.seeds)
    return [budget.run(name, kind, MODELS[name].first_seed + index) for index in seeds for name, kind in runs]


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train through the curriculum, then measure."""
    settings = run.configuration
    recipe = settings.read_recipe()
    task = question_task(recipe.data.task or {})
    questions = LastSegment if settings.model == LAST_SEGMENT else StagedQuestions
    data = questions(recipe, settings.context, task)
    longest = max(stage.length for stage in recipe.training.curriculum) * settings.context
    model = starting_model(recipe, data.tokenizer, context=longest).to(context.device)
    stages = train_stages_of(model, recipe, data, context.folder, context.report)
    exact_match, seconds_per_token = {}, {}
    for segments in settings.measured:
        context.report(1.0, f"measuring {segments * settings.context:,} tokens")
        exact_match[str(segments)], seconds_per_token[str(segments)] = _measure(model, data, settings, segments)
    outcome = {
        "parameters": num_parameters(model),
        "stages": stages,
        "exact_match": exact_match,
        "seconds_per_token": seconds_per_token,
    }
    if isinstance(model, ARMTForCausalLM) and isinstance(task, BABILong):
        context.report(1.0, "measuring what is written")
        segments = min(NOISE_SEGMENTS, max(settings.measured))
        books = task.books("test")
        outcome["test_noise"] = {"books": len(books), "tokens": sum(len(book.tokens) for book in books)}
        outcome["written_noise"] = written_noise(model, task, settings.seed, segments=segments)
        outcome["written_facts"] = written_facts(model, task, settings.seed)
    return outcome


@dataclass(frozen=True)
class LastSegment(StagedQuestions):
    """The same contexts, of which only the last segment is read."""

    def batch(self, stage: Stage, count: int, tokens: int, seed: int, split: str, early: int = 0) -> QuestionBatch:
        """Contexts cut to what stands behind the last border of segments; no early questions."""
        batch = super().batch(stage, count, tokens, seed, split)
        last = batch.contexts.shape[1] % self.segment or self.segment
        return replace(batch, contexts=batch.contexts[:, -last:])


def _measure(model: torch.nn.Module, data: StagedQuestions, settings: BabilongSettings, segments: int):
    """Exact match of held-out samples (published form: `segments` segments with the question in the last), and time.

    Stories have the lengths of `LENGTHS`, whatever training had. Facts take at most a fifth of a sample where that
    holds the shortest of them, else what training allows.
    """
    tokens, count = segments * settings.context, settings.contexts(segments)
    is_long = PLAIN_FACT[settings.kind] * LENGTHS[settings.kind][0] <= PUBLISHED_SHARE * tokens
    share = {"facts_share": PUBLISHED_SHARE} if is_long else {}
    stage = Stage(segments, 1, settings={"fewest_facts": None, **share})
    # What is drawn depends on the number of texts, not on the model: models that read as many read the same ones.
    drawn = max(1, min(count, READ_AT_ONCE // tokens))
    read = drawn
    if settings.model in WHOLE_TEXT:
        read = max(1, min(drawn, WHOLE_AT_ONCE // (settings.recipe["data"]["questions"] * tokens)))
    shares, sources, began = [], [], time.perf_counter()
    are_unseen = "test_noise" in settings.recipe["data"]["task"]
    for first in range(0, count, drawn):
        texts, seed = min(drawn, count - first), 1_000_000 * settings.seed + first
        batch = data.batch(stage, texts, tokens - RESERVED, seed, "test")
        if are_unseen and batch.sources is not None:
            sources.append(batch.sources)
        shares += [right_answers(model, batch.rows(row, row + read)) for row in range(0, len(batch.contexts), read)]
    seconds = time.perf_counter() - began
    groups = torch.cat(sources) if sources else None  # texts that begin in the same book are not independent
    return estimate(torch.cat(shares), groups), seconds / (count * (tokens - RESERVED))


# ARMT around several bases, its relatives, and models that read the whole text or the last segment alone.
EXPERIMENT = Experiment(LIBRARY["babilong"], BabilongSettings, plan, execute, report.tables, report.plot, tuple(MODELS))
