"""How a model is trained and asked: through its memory where it has one, with the whole text where it has not."""

import torch
from torch import Tensor, nn

from tessera.ops.linear_cross_entropy import IGNORED


def is_segmented(model: nn.Module) -> bool:
    """Whether `model` reads one segment at a time into a memory; else it reads the whole text at once."""
    return hasattr(model, "empty_memory")


def loss(model: nn.Module, context: Tensor, questions: Tensor, segment_size: int) -> Tensor:
    """Cross entropy of the answers to questions (B, Q, t) about contexts (B, T).

    A segmented model reads each context once, and every question is asked of its memory. Another one reads the
    questions with their answers after the context, in one row.
    """
    context, questions = context.to(model.device), questions.to(model.device)
    if not is_segmented(model):
        row = torch.cat([context, questions.flatten(1)], 1)
        labels = torch.full_like(row, IGNORED)
        labels[:, context.shape[1] :] = _only_answers(questions).flatten(1)
        return model(input_ids=row, labels=labels).loss
    asked = read(model, context, segment_size).repeat_batch(questions.shape[1])
    labels = _only_answers(questions).flatten(0, 1)
    # With a cache the questions' segments stay open: nothing of them is written.
    return model(input_ids=questions.flatten(0, 1), labels=labels, memory_state=asked, use_cache=True).loss


@torch.no_grad()
def answers(model: nn.Module, context: Tensor, questions: Tensor, segment_size: int) -> Tensor:
    """The greedy answers (B, Q); every question is asked alone, right after its context."""
    context, questions = context.to(model.device), questions.to(model.device)
    prompts = questions[..., :-1].flatten(0, 1)
    if is_segmented(model):
        asked = read(model, context, segment_size).repeat_batch(questions.shape[1])
        logits = model(input_ids=prompts, memory_state=asked, use_cache=True, logits_to_keep=1).logits
    else:
        rows = torch.cat([context.repeat_interleave(questions.shape[1], 0), prompts], 1)
        logits = model(input_ids=rows).logits
    return logits[:, -1].argmax(-1).unflatten(0, questions.shape[:2]).cpu()


def read(model: nn.Module, context: Tensor, segment_size: int, state=None):
    """The memory of a segmented model after the contexts, one pair per segment, and after what `state` remembers."""
    model.config.segment_size = segment_size
    return model(input_ids=context, memory_state=state, skip_logits=True).memory_state


def _only_answers(questions: Tensor) -> Tensor:
    labels = torch.full_like(questions, IGNORED)
    labels[..., -1] = questions[..., -1]
    return labels
