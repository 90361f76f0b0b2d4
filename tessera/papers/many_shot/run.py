"""Many-shot classification: trained on some classes, tested on others, with up to four times the shots."""

from functools import partial
from typing import Any

from transformers import PreTrainedModel

from tessera.evaluation.continuations import Request
from tessera.models.sizes import num_parameters
from tessera.papers.catalogue import LIBRARY
from tessera.papers.experiment import Experiment, Run, RunContext, RunSelection
from tessera.papers.many_shot import ManyShot, report
from tessera.papers.many_shot.files import Example
from tessera.papers.many_shot.prompting import episode_shares, over_contexts
from tessera.papers.many_shot.prompts import STRATEGIES, Episode
from tessera.papers.many_shot.settings import BUDGETS, MODELS, SEEDS, ManyShotSettings
from tessera.papers.task_stage import TEST_SEED, small_model, train_stages


def plan(selection: RunSelection) -> list[Run]:
    """Seed by seed, all models of a seed."""
    seeds = range(selection.seeds or SEEDS[selection.budget])
    return [BUDGETS[selection.budget].run(name, seed) for seed in seeds for name in selection.models or MODELS]


def execute(run: Run, context: RunContext) -> dict[str, Any]:
    """Train on contexts that are new at every step, then test; v2 once more with its long-term memories off."""
    settings = run.configuration
    model = build(settings).to(context.device)
    outcome: dict[str, Any] = train_stages(model, settings.stages(), context)
    outcome["parameters"] = num_parameters(model)
    outcome["scores"] = evaluate(model, settings, context)
    if settings.model == "mosaic_v2":
        model.disable_long_term_memory()
        outcome["without_long_term_memory"] = evaluate(model, settings, context)
    return outcome


def build(settings: ManyShotSettings) -> PreTrainedModel:
    """The model of a run."""
    vocab_size = settings.trained_tasks()[0].vocabulary.get_vocab_size()
    return small_model(settings, settings.model, vocab_size=vocab_size, max_positions=16 * settings.span)


def evaluate(model: PreTrainedModel, settings: ManyShotSettings, context: RunContext) -> dict[str, Any]:
    """Shots -> strategy -> score -> mean, standard error over contexts, count: `exact_match` of the greedy label, and
    `likeliest_label`, the most likely of the context's labels."""
    scores: dict[str, Any] = {}
    for shots in settings.test_shots:
        for strategy in STRATEGIES:
            context.report(1.0, f"testing {shots} shots ({strategy})")
            task = settings.tested_task(shots, strategy)
            episodes = task.episodes(settings.contexts, TEST_SEED, "test", settings.queries)
            shares = [episode_shares(model, e, partial(_requests, task, e), settings.queries) for e in episodes]
            scores.setdefault(str(shots), {})[strategy] = {n: list(v) for n, v in over_contexts(shares).items()}
    return scores


def _requests(task: ManyShot, episode: Episode, query: Example) -> list[Request]:
    prompt = task.prompt(episode, query)
    return [Request(prompt, [task.label(label)]) for label in (*episode.labels, query.label)]


# Memory Mosaics v2, figures 4, 6 and 11 at small size: anonymous labels, models trained on episodes.
EXPERIMENT = Experiment(
    LIBRARY["many_shot"],
    settings=ManyShotSettings,
    plan=plan,
    execute=execute,
    tables=report.tables,
    plot=report.plot,
    models=MODELS,
)
