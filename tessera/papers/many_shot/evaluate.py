"""Accuracy on classes that were never seen, by number of shots and prompt strategy."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tessera.models.forking import fork
from tessera.papers.experiment import RunContext
from tessera.papers.many_shot import ManyShot
from tessera.papers.many_shot.settings import STRATEGIES, ManyShotSettings
from tessera.tasks.task import estimate

TEST_SEED = 1_000_003


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
        prompts = [task.prompt(episode, query) for query in episode.queries]
        logits = next_logits(model, prompts).cpu()
        targets = torch.tensor([episode.labels.index(query.label) for query in episode.queries])
        labels = torch.tensor([token for label in episode.labels for token in task.label(label)])
        values["exact_match"].append((logits.argmax(-1) == labels[targets]).double().mean())
        values["likeliest_label"].append((logits[:, labels].argmax(-1) == targets).double().mean())
    return {name: list(estimate(torch.stack(shares))) for name, shares in values.items()}


def next_logits(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> Tensor:
    """The logits (prompts, V) behind each prompt; the tokens that all share at their beginning are read once."""
    shortest = min(map(len, prompts))
    differ = (place for place in range(shortest - 1) if len({prompt[place] for prompt in prompts}) > 1)
    shared = next(differ, shortest - 1)
    state = None
    if shared:
        output = model(torch.tensor([prompts[0][:shared]], device=model.device), use_cache=True, logits_to_keep=1)
        state = fork(output.past_key_values, len(prompts))
    rests = [list(prompt[shared:]) for prompt in prompts]
    longest = max(map(len, rests))
    tokens = torch.tensor([[*rest, *[0] * (longest - len(rest))] for rest in rests], device=model.device)
    logits = model(tokens, past_key_values=state, use_cache=state is not None).logits
    last = torch.tensor([len(rest) - 1 for rest in rests], device=model.device)
    return logits[torch.arange(len(rests), device=model.device), last]
