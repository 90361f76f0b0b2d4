"""How large ARMT's memory grows: what the correction of the normaliser is there to prevent (ARMT, appendix)."""

import torch
from torch import nn

from tessera.experiments.associative_retrieval.asking import read
from tessera.tasks.associative_retrieval import AssociativeRetrieval
from tessera.tasks.task import generator_of


@torch.no_grad()
def memory_norms(model: nn.Module, task: AssociativeRetrieval, lengths: list[int], contexts: int, seed: int) -> dict:
    """Mean norms of the normaliser z and of the matrix A, over layers and contexts, after each of `lengths` pairs.

    Empty for models without association matrices.
    """
    if not hasattr(model, "memories"):
        return {}
    context, _ = task.sample_questions(contexts, 1, generator_of(task, seed, "test"))
    context = context.to(model.device)
    found: dict[str, dict[str, float]] = {"normaliser": {}, "matrix": {}}
    state, done = None, 0
    for length in sorted(n for n in lengths if n <= task.num_pairs):
        part = context[:, done * task.segment_size : length * task.segment_size]
        state, done = read(model, part, task.segment_size, state), length
        found["normaliser"][str(length)] = state.z.norm(dim=-1).mean().item()
        found["matrix"][str(length)] = state.A.flatten(2).norm(dim=-1).mean().item()
    return found
