"""Many-shot classification: trained on some classes, tested on others, with up to four times the shots."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tessera.models.forking import fork
from tessera.models.sizes import num_parameters
from tessera.models.small_models import build_small_model
from tessera.papers.catalogue import LIBRARY
from tessera.papers.experiment import Experiment, Run, RunContext, RunSelection
from tessera.papers.many_shot import ManyShot, report
from tessera.papers.many_shot.prompts import STRATEGIES
from tessera.papers.many_shot.settings import BUDGETS, MODELS, SEEDS, ManyShotSettings
from tessera.papers.task_stage import TEST_SEED, train_stages
from tessera.tasks.task import estimate


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


def evaluate(model: PreTrainedModel, settings: ManyShotSettings, context: RunContext) -> dict[str, Any]:
    """Shots -> strategy -> score -> mean, standard error over contexts, count: `exact_match` of the greedy label, and
    `likeliest_label`, the most likely of the context's labels."""
    scores: dict[str, Any] = {}
    for shots in settings.test_shots:
        for strategy in STRATEGIES:
            context.report(1.0, f"testing {shots} shots ({strategy})")
            task = settings.tested_task(shots, strategy)
            scores.setdefault(str(shots), {})[strategy] = _score(model, task, settings)
    return scores


@torch.no_grad()
def _score(model: PreTrainedModel, task: ManyShot, settings: ManyShotSettings) -> dict[str, list[float]]:
    values: dict[str, list[Tensor]] = {"exact_match": [], "likeliest_label": []}
    for episode in task.episodes(settings.contexts, TEST_SEED, "test", settings.queries):
        logits = next_logits(model, [task.prompt(episode, query) for query in episode.queries]).cpu()
        targets = torch.tensor([episode.labels.index(query.label) for query in episode.queries])
        labels = torch.tensor([task.label(label) for label in episode.labels])
        values["exact_match"].append((logits.argmax(-1) == labels[targets]).double().mean())
        values["likeliest_label"].append((logits[:, labels].argmax(-1) == targets).double().mean())
    return {name: list(estimate(torch.stack(shares))) for name, shares in values.items()}


def next_logits(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> Tensor:
    """The logits (prompts, V) behind each prompt; the tokens that all share at their beginning are read once."""
    shortest = min(map(len, prompts))
    differ = (place for place in range(shortest - 1) if len({prompt[place] for prompt in prompts}) > 1)
    shared, state = next(differ, shortest - 1), None
    if shared:
        output = model(torch.tensor([prompts[0][:shared]], device=model.device), use_cache=True, logits_to_keep=1)
        state = fork(output.past_key_values, len(prompts))
    rests = [torch.tensor(prompt[shared:], device=model.device) for prompt in prompts]
    tokens = torch.nn.utils.rnn.pad_sequence(rests, batch_first=True)
    logits = model(tokens, past_key_values=state, use_cache=state is not None).logits
    return torch.stack([row[len(rest) - 1] for row, rest in zip(logits, rests)])


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
