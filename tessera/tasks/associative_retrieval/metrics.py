"""Exact match, the capacity it implies, and the answers of something that knows."""

from collections.abc import Callable

import torch
from torch import Tensor

from tessera.tasks.associative_retrieval.generator import RetrievalTask


def exact_match(
    predict: Callable[[Tensor], Tensor],
    task: RetrievalTask,
    num_pairs: int,
    num_samples: int,
    batch: int = 250,
    seed: int = 10_000,
) -> float:
    """Share of samples whose answer `predict` finds: it maps the prompts (B, T - 1) to answers (B,)."""
    generator = torch.Generator().manual_seed(seed)
    right, done = 0, 0
    while done < num_samples:
        size = min(batch, num_samples - done)
        tokens = task.sample(num_pairs, size, generator).tokens
        right += int((predict(tokens[:, :-1]).cpu() == tokens[:, -1]).sum())
        done += size
    return right / num_samples


def standard_error(share: float, num_samples: int) -> float:
    """Of a share of `num_samples` independent samples."""
    return (share * (1 - share) / num_samples) ** 0.5


def capacity(share: float, num_pairs: int, num_values: int) -> float:
    """Number of pairs in memory, `k = n (v a - 1) / (v - 1)` for exact match a (ARMT, appendix A.1)."""
    return num_pairs * (num_values * share - 1) / (num_values - 1)


def chance(task: RetrievalTask) -> float:
    """Exact match of a guess."""
    return 1 / task.num_symbols


def oracle_answers(task: RetrievalTask) -> Callable[[Tensor], Tensor]:
    """A `predict` that reads the prompt as a person would; its exact match is 1."""

    def predict(prompts: Tensor) -> Tensor:
        size = task.segment_size
        pairs = prompts[:, : prompts.shape[1] // size * size].unflatten(1, (-1, size))
        asked = prompts[:, pairs.shape[1] * size :][:, None, : task.key_size]
        found = (pairs[..., : task.key_size] == asked).all(-1)
        latest = pairs.shape[1] - 1 - found.flip(1).int().argmax(1)
        return pairs[torch.arange(len(prompts)), latest, task.key_size + 1]

    return predict
