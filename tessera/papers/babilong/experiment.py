"""BABILong, trained by a curriculum and measured far past the trained length (ARMT, section 4)."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tessera.evaluation.questions import right_answers
from tessera.models.armt.modeling import ARMTForCausalLM
from tessera.models.sizes import num_parameters
from tessera.papers.babilong import report
from tessera.papers.babilong.models import LAST_SEGMENT, NAMES, THRESHOLD, WHOLE_TEXT
from tessera.papers.babilong.sample import RESERVED
from tessera.papers.babilong.settings import BUDGETS, PUBLISHED_SHARE, SHORTEST_STORY, BabilongSettings
from tessera.papers.babilong.task import BABILong
from tessera.papers.babilong.writes import written_facts, written_noise
from tessera.papers.experiment import EXPERIMENTS, Experiment, Record, Run, RunContext, RunSelection
from tessera.recipes.sections import Stage
from tessera.tasks.question_answering import QuestionBatch
from tessera.tasks.task import estimate
from tessera.training.curriculum import train_stages_of
from tessera.training.initial_model import starting_model
from tessera.training.staged_data import StagedQuestions, question_task

READ_AT_ONCE = 1 << 22  # tokens of the contexts that are read side by side, segment by segment or the last alone
NOISE_SEGMENTS = 1024
WHOLE_AT_ONCE = 1 << 18  # by a model that reads the whole text, which it does for each question


class BabilongExperiment(Experiment):
    """ARMT around several bases, its relatives, and models that read the whole text or the last segment alone."""

    title = "BABILong: facts hidden in long texts"
    source = "Associative Recurrent Memory Transformer, section 4"
    settings = BabilongSettings
    models = tuple(NAMES)

    def runs(self, selection: RunSelection) -> list[Run]:
        """QA1 of all models first; the other kinds for the model that is best in long texts, else the first."""
        budget = BUDGETS[selection.budget]
        names = self.select_models("reproduce babilong", selection, budget.models)
        runs = []
        for seed in range(selection.seeds or budget.seeds):
            runs += [budget.run(name, budget.kinds[0], seed) for name in names]
            best = THRESHOLD if THRESHOLD in names else names[0]
            runs += [budget.run(best, kind, seed) for kind in budget.kinds[1:]]
        return runs

    def execute(self, run: Run, context: RunContext) -> dict[str, Any]:
        """Train through the curriculum, then measure."""
        settings = run.configuration
        recipe = settings.plan()
        task = question_task(recipe.data.task or {})
        questions = LastSegment if settings.model == LAST_SEGMENT else StagedQuestions
        data = questions(recipe, settings.segment, task)
        longest = max(stage.length for stage in recipe.training.curriculum) * settings.segment
        model = starting_model(recipe, data.tokenizer, context=longest).to(context.device)
        stages = train_stages_of(model, recipe, data, context.folder, context.report)
        exact_match, seconds_per_token = {}, {}
        for segments in settings.measured:
            context.report(1.0, f"measuring {segments * settings.segment:,} tokens")
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
            outcome["written_noise"] = written_noise(model, task, settings.seed, segments=segments)
            outcome["written_facts"] = written_facts(model, task, settings.seed)
        return outcome

    def tables(self, records: Mapping[str, Record]) -> dict[str, str]:
        """See `report.py`."""
        return report.tables(records)

    def plot(self, records: Mapping[str, Record], path: Path) -> None:
        """See `report.py`."""
        report.draw(records, path)


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

    Stories are as long as bAbI's, whatever training had. Facts take at most a fifth of a sample where that holds the
    shortest of them, else what training allows.
    """
    tokens, count = segments * settings.segment, settings.contexts(segments)
    is_long = SHORTEST_STORY[settings.kind] <= PUBLISHED_SHARE * tokens
    share = {"facts_share": PUBLISHED_SHARE} if is_long else {}
    stage = Stage(segments, 1, settings={"fewest_facts": None, **share})
    # What is drawn depends on the number of texts, not on the model: models that read as many read the same ones.
    drawn = max(1, min(count, READ_AT_ONCE // tokens))
    read = drawn
    if settings.model in WHOLE_TEXT:
        read = max(1, min(drawn, WHOLE_AT_ONCE // (settings.plan().data.questions * tokens)))
    shares, began = [], time.perf_counter()
    for first in range(0, count, drawn):
        batch = data.batch(stage, min(drawn, count - first), tokens, 1_000_000 * settings.seed + first, "test")
        shares += [right_answers(model, batch.rows(row, row + read)) for row in range(0, len(batch.contexts), read)]
    seconds = time.perf_counter() - began
    return estimate(torch.cat(shares)), seconds / (count * (tokens - RESERVED))


EXPERIMENTS.add("babilong", BabilongExperiment())
