"""Associative retrieval, trained by a curriculum and measured far past its trained length (ARMT, section 3)."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from tessera.experiments.associative_retrieval import asking, models
from tessera.experiments.associative_retrieval.budgets import BUDGETS, KEY_SIZE, MODELS, VOCABULARY, Budget
from tessera.experiments.associative_retrieval.figure import draw
from tessera.experiments.associative_retrieval.norms import memory_norms
from tessera.experiments.associative_retrieval.table import table
from tessera.experiments.experiment import EXPERIMENTS, Experiment, Record, Run, RunContext, RunSelection, select_names
from tessera.models.sizes import num_parameters
from tessera.models.small_models import ModelSize
from tessera.tasks.associative_retrieval import RULES, AssociativeRetrieval, capacity, capacity_error
from tessera.tasks.task import estimate, generator_of
from tessera.training.curriculum import Curriculum, Stage, train_stages
from tessera.training.fit import FitOptions

# Of held-out contexts that are read at once: at most so many, and at most so many pairs of all of them.
CONTEXTS_AT_ONCE, PAIRS_AT_ONCE = 16, 2000
# Relative time of a step, in the order of the runs: what the time left is estimated from.
COSTS = {"armt": 1.0, "armt_no_correction": 1.0, "rmt": 0.7, "prmt": 0.7, "mamba": 5.0, "mosaic": 0.4}


class AssociativeRetrievalExperiment(Experiment):
    """ARMT and its relatives on remember and rewrite."""

    title = "Associative retrieval: what a memory of fixed size recalls"
    source = "Associative Recurrent Memory Transformer, section 3 and appendix A"
    models = MODELS

    def runs(self, selection: RunSelection) -> list[Run]:
        """Rewrite first, seed by seed."""
        budget = BUDGETS[selection.budget]
        names = select_names("associative_retrieval", "models", self.models, selection.models, budget.models)
        select_names("associative_retrieval", "kernels", self.kernels, selection.kernels, ())
        found = []
        for seed in range(selection.seeds or budget.seeds):
            for rule in reversed(RULES):
                found += [_run(budget, name, rule, seed) for name in names]
            if "armt" in names:
                found += [_run(budget, "armt", "rewrite", seed, label) for label in budget.ablation]
        return found

    def execute(self, run: Run, context: RunContext) -> dict[str, Any]:
        """Train through the curriculum, then measure."""
        given = run.configuration
        seed, rule = given["seed"], given["rule"]
        model = models.build(given["model"], ModelSize(**given["sizes"]), seed).to(context.device)

        def loss_at(stage: Stage, number: int, step: int) -> torch.Tensor:
            task = _task(rule, stage.length_at(step, seed), stage.settings[KEY_SIZE])
            generator = generator_of(task, (seed * 100 + number) * 1_000_000 + step, "train")
            batch = task.sample_questions(given["batch_size"], given["questions"], generator)
            return asking.loss(model, *batch, task.segment_size)

        def score(stage: Stage) -> float:
            task = _task(rule, stage.length, stage.settings[KEY_SIZE])
            return _exact_match(model, task, given["check_contexts"], given["asked"], seed, "validation").mean().item()

        curriculum = Curriculum.from_dict(given["curriculum"])
        stages = train_stages(
            model, curriculum, FitOptions(**given["options"]), context.folder, loss_at, score, context.report
        )
        outcome = {"parameters": num_parameters(model), "stages": stages}
        return outcome | _measure(model, given, curriculum.stages[-1], context)

    def table(self, runs: Mapping[str, Record]) -> str:
        """See `tables`."""
        return table(runs)

    def plot(self, runs: Mapping[str, Record], path: Path) -> None:
        """Rewrite, remember, capacity."""
        draw([(record.configuration, record.outcome) for record in runs.values()], path)


def _run(budget: Budget, name: str, rule: str, seed: int, ablation: str | None = None) -> Run:
    sizes = replace(budget.sizes, **(budget.ablation[ablation] if ablation else {}))
    curriculum = budget.curriculum(name, rule)
    steps = sum(stage.steps * (stage.length + 8) for stage in curriculum.stages)
    parts = [name, rule, *([ablation] if ablation else []), f"seed {seed}"]
    return Run(
        "/".join(parts),
        {
            "model": name,
            "rule": rule,
            "ablation": ablation,
            "seed": seed,
            "sizes": asdict(sizes),
            "curriculum": curriculum.to_dict(),
            "options": asdict(budget.options),
            "batch_size": budget.batch_size,
            "questions": budget.questions,
            "measured": budget.measured_by(name, rule),
            "contexts": budget.contexts,
            "asked": budget.asked,
            "check_contexts": budget.check_contexts,
        },
        cost=COSTS[name] * steps,
    )


def _task(rule: str, pairs: int, key_size: int) -> AssociativeRetrieval:
    return AssociativeRetrieval(rule, pairs, key_size)


@torch.no_grad()
def _exact_match(model, task: AssociativeRetrieval, contexts: int, asked: int, seed: int, split: str) -> torch.Tensor:
    """The share of right answers of each of so many held-out contexts: questions to one context are not independent."""
    generator, shares = generator_of(task, seed, split), []
    together = max(1, min(CONTEXTS_AT_ONCE, PAIRS_AT_ONCE // task.num_pairs))
    for start in range(0, contexts, together):
        context, questions = task.sample_questions(min(together, contexts - start), asked, generator)
        given = asking.answers(model, context, questions, task.segment_size)
        shares.append((given == questions[..., -1]).double().mean(1))
    return torch.cat(shares)


def _measure(model, given: Mapping[str, Any], last: Stage, context: RunContext) -> dict[str, Any]:
    """Exact match and capacity at every measured number of pairs, with standard errors over contexts."""
    found: dict[str, Any] = {"exact_match": {}, "capacity": {}, "trained_pairs": last.length}
    symbols = VOCABULARY - 3
    for pairs in given["measured"]:
        context.report(1.0, f"measuring {pairs} pairs")
        task = _task(given["rule"], pairs, last.settings[KEY_SIZE])
        contexts = given["contexts"] if pairs <= 10 else -(-given["contexts"] // 4)
        # A model without a memory reads the whole text again for each question.
        asked = given["asked"] if pairs <= 10 or asking.is_segmented(model) else -(-given["asked"] // 8)
        share = estimate(_exact_match(model, task, contexts, asked, given["seed"], "test"))
        found["exact_match"][str(pairs)] = share
        found["capacity"][str(pairs)] = [
            capacity(share.mean, pairs, symbols),
            capacity_error(share.standard_error, pairs, symbols),
        ]
    task = _task(given["rule"], max(given["measured"]), last.settings[KEY_SIZE])
    found["norms"] = memory_norms(model, task, given["measured"], CONTEXTS_AT_ONCE, given["seed"])
    return found


EXPERIMENTS.add("associative_retrieval", AssociativeRetrievalExperiment())
