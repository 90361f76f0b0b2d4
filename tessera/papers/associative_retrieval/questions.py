"""How a model is trained and tested: through its memory where it has one, with the whole text where it has not."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tessera.models.forking import state_numbers
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.papers.associative_retrieval import AssociativeRetrieval
from tessera.tasks.task import generator_of

# Of held-out contexts that are read at once: at most so many, and at most so many pairs of all of them.
CONTEXTS_AT_ONCE, PAIRS_AT_ONCE = 16, 2000


def is_segmented(model: PreTrainedModel) -> bool:
    """Whether `model` reads one segment at a time into a memory; else it reads the whole text at once."""
    return hasattr(model, "empty_memory")


def loss(
    model: PreTrainedModel, context: Tensor, questions: Tensor, segment_size: int, end_token: int | None = None
) -> Tensor:
    """Cross entropy of the answers to questions (B, Q, t) about contexts (B, T), and of `end_token` behind each answer.

    A segmented model reads each context once, and every question is asked of its memory. Another one reads the
    questions with their answers after the context, in one row.
    """
    answer_size = 1
    if end_token is not None:
        questions, answer_size = torch.cat([questions, torch.full_like(questions[..., :1], end_token)], -1), 2
    context, questions = context.to(model.device), questions.to(model.device)
    if not is_segmented(model):
        row = torch.cat([context, questions.flatten(1)], 1)
        labels = torch.full_like(row, IGNORED)
        labels[:, context.shape[1] :] = _only_answers(questions, answer_size).flatten(1)
        return model(input_ids=row, labels=labels).loss
    memory = read(model, context, segment_size)
    labels = _only_answers(questions, answer_size).flatten(0, 1)
    # With a cache the questions' segments stay open: nothing of them is written.
    return model(input_ids=questions.flatten(0, 1), labels=labels, memory_state=memory, use_cache=True).loss


@torch.no_grad()
def answers(model: PreTrainedModel, context: Tensor, questions: Tensor, segment_size: int) -> Tensor:
    """The greedy answers (B, Q); every question is asked alone, right after its context."""
    context, questions = context.to(model.device), questions.to(model.device)
    prompts = questions[..., :-1].flatten(0, 1)
    if is_segmented(model):
        memory = read(model, context, segment_size)
        logits = model(input_ids=prompts, memory_state=memory, use_cache=True, logits_to_keep=1).logits
    else:
        rows = torch.cat([context.repeat_interleave(questions.shape[1], 0), prompts], 1)
        logits = model(input_ids=rows, use_cache=False).logits
    return logits[:, -1].argmax(-1).unflatten(0, questions.shape[:2]).cpu()


def read(model: PreTrainedModel, context: Tensor, segment_size: int, state=None):
    """The memory of a segmented model after the contexts, one pair per segment, and after what `state` remembers."""
    model.config.segment_size = segment_size
    return model(input_ids=context, memory_state=state, skip_logits=True).memory_state


@torch.no_grad()
def exact_match(
    model: PreTrainedModel, task: AssociativeRetrieval, contexts: int, num_questions: int, seed: int, split: str
) -> Tensor:
    """The share of right answers of each of so many held-out contexts: questions to one context are not independent."""
    generator, shares = generator_of(task, seed, split), []
    together = max(1, min(CONTEXTS_AT_ONCE, PAIRS_AT_ONCE // task.num_pairs))
    for start in range(0, contexts, together):
        context, questions = task.sample_questions(min(together, contexts - start), num_questions, generator)
        is_right = answers(model, context, questions, task.segment_size) == questions[..., -1]
        shares.append(is_right.double().mean(1))
    return torch.cat(shares)


@torch.no_grad()
def numbers_kept(model: PreTrainedModel, task: AssociativeRetrieval, seed: int) -> int:
    """How many numbers a model carries on after one context of `task`: its memory, or the cache of the whole text."""
    context = task.sample_questions(1, 1, generator_of(task, seed, "test"))[0].to(model.device)
    if is_segmented(model):
        return state_numbers(read(model, context, task.segment_size))
    output = model(input_ids=context, use_cache=True)
    return state_numbers(output.get("past_key_values", output.get("cache_params")))


@torch.no_grad()
def memory_norms(model: PreTrainedModel, task: AssociativeRetrieval, lengths: Sequence[int], seed: int) -> dict:
    """Mean norms of the normaliser z and of the matrix A, over layers and contexts, after each of `lengths` pairs.

    The correction of the normaliser is there to keep them from growing (ARMT, appendix). Empty for models without
    association matrices.
    """
    if not hasattr(model, "memories"):
        return {}
    context, _ = task.sample_questions(CONTEXTS_AT_ONCE, 1, generator_of(task, seed, "test"))
    context = context.to(model.device)
    norms: dict[str, dict[str, float]] = {"normaliser": {}, "matrix": {}}
    state, done = None, 0
    for length in sorted(n for n in lengths if n <= task.num_pairs):
        part = context[:, done * task.segment_size : length * task.segment_size]
        state, done = read(model, part, task.segment_size, state), length
        norms["normaliser"][str(length)] = state.z.norm(dim=-1).mean().item()
        norms["matrix"][str(length)] = state.A.flatten(2).norm(dim=-1).mean().item()
    return norms


def _only_answers(questions: Tensor, size: int) -> Tensor:
    labels = torch.full_like(questions, IGNORED)
    labels[..., -size:] = questions[..., -size:]
    return labels
