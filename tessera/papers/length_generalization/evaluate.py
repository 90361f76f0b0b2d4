"""Scores at every length, and whether sharper memories would have done better."""

import math
from typing import Any

import torch
from torch import nn

from tessera.base.precision import autocast
from tessera.memories.contextual import ContextualMemory
from tessera.papers.length_generalization.settings import LengthSettings
from tessera.tasks.task import estimate

TEST_SEED = 1_000_003
SHARPER = 2.0


@torch.no_grad()
def evaluate(model: nn.Module, settings: LengthSettings, factor: float, device: str) -> dict[str, list[float]]:
    """Mean, standard error and count of each score at `factor` times the test length; small batches of long rows.

    A score that fewer than two examples have is left out.
    """
    task = settings.task_at(factor)
    width = task.sample(1, 0, "test").tokens.shape[1]
    batch_size, left = max(1, 16_384 // width), settings.num_tests(width)
    collected: dict[str, list[torch.Tensor]] = {}
    seed = TEST_SEED
    while left > 0:
        examples = task.sample(min(batch_size, left), seed, "test")
        with autocast(settings.precision, device):
            logits = model(input_ids=examples.tokens.to(device), use_cache=False).logits
        for name, values in task.scores(logits.float(), examples).items():
            collected.setdefault(name, []).append(values)
        left, seed = left - len(examples), seed + 1
    estimates = {name: estimate(torch.cat(values)) for name, values in collected.items()}
    return {name: list(one) for name, one in estimates.items() if one.count > 1}


def sharper(model: nn.Module, settings: LengthSettings, scores: dict[str, Any], device: str) -> dict[str, Any]:
    """The scores with every contextual memory's inverse bandwidth times `SHARPER`, at one length.

    Weight that spreads over more and more pairs can be gathered again by a narrower kernel; a key that fits several
    stored pairs cannot be helped. Tested at the longest length at which half of the symbols are still right.
    """
    memories = [module for module in model.modules() if isinstance(module, ContextualMemory)]
    alive = [factor for factor in settings.factors if scores[f"{factor:g}"]["token_accuracy"][0] > 0.5]
    if not memories or not alive:
        return {}
    with torch.no_grad():
        for memory in memories:
            memory.bandwidth.get_parameter("log_inverse_bandwidth").add_(math.log(SHARPER))
    return {"sharper": {f"{alive[-1]:g}": evaluate(model, settings, alive[-1], device)}}
