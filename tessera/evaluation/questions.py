"""Questions asked of a model after it read a text: the loss of the answers, and which are right.

A model reads each context once to answer the questions about it: its state is a value that every question starts from.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tessera.base.errors import expect
from tessera.models.carried_state import BLOCK, last_logits, read_on, reads_on
from tessera.models.forking import fork
from tessera.models.recurrence.state import MemoryState
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.tasks.question_answering import QuestionBatch


def is_segmented(model: nn.Module) -> bool:
    """Whether `model` reads one segment at a time into a memory; else it reads the whole text at once."""
    return hasattr(model, "empty_memory")


def answer_loss(model: nn.Module, batch: QuestionBatch) -> tuple[Tensor, Tensor]:
    """The sum of the cross entropy in nats over the tokens with a label, and how many these are.

    Those of the early questions of a segmented model count too, after the segments that gradients flow through
    (`SegmentedConfig.backprop_segments`). A model without a memory reads all questions with their answers behind the
    context, in one row.
    """
    contexts, questions, labels = _on_device(model, batch)
    count = count_answers(model, batch)
    if not is_segmented(model):
        unlabelled = torch.full_like(contexts, IGNORED)
        rows = torch.cat([contexts, questions.flatten(1)], 1)
        return model(input_ids=rows, labels=torch.cat([unlabelled, labels.flatten(1)], 1)).loss * count, count
    carried, early = _after_contexts(model, contexts, questions.shape[1], batch.early_questions is not None)
    # With a cache the last segment stays open: nothing of a question is written.
    total = _output_for(model, questions.flatten(0, 1), labels.flatten(0, 1), carried).loss
    if early and batch.early_questions is not None and batch.early_labels is not None:
        segments, read = batch.early_questions.shape[1], len(early)
        expect(segments == read, "answer_loss", "early_questions", f"be of the {read} segments read", segments)
        first = _first_with_gradient(model, contexts)
        rows, row_labels = (
            part[:, first:].to(contexts.device).transpose(0, 1).flatten(0, 2)  # segment, context, question
            for part in (batch.early_questions, batch.early_labels)
        )
        memories = type(early[0]).stack(early[first:])
        total = total + _output_for(model, rows, row_labels, {"memory_state": memories}).loss
    return total, count


def count_answers(model: nn.Module, batch: QuestionBatch) -> Tensor:
    """How many tokens `answer_loss` counts, without reading anything."""
    contexts, _, labels = _on_device(model, batch)
    count = (labels != IGNORED).sum()
    if batch.early_labels is None or not is_segmented(model):
        return count
    return count + (batch.early_labels[:, _first_with_gradient(model, contexts) :] != IGNORED).sum().to(count.device)


def right_answers(model: nn.Module, batch: QuestionBatch) -> Tensor:
    """The share of right answers of each context (B,): the likeliest tokens are the answer's, but for its end.

    Every question is asked alone, right after its context. Questions to one context are not independent.
    """
    return _right(question_logits(model, batch), batch)


@torch.no_grad()
def question_logits(model: nn.Module, batch: QuestionBatch) -> Tensor:
    """Logits (B Q, t, V) of the questions with their answers, each alone behind its context, which is read once."""
    return (_asked_of_memory if is_segmented(model) else _asked_alone)(model, batch)[0]


@torch.no_grad()
def score_answers(model: nn.Module, batch: QuestionBatch) -> tuple[Tensor, Tensor, Tensor]:
    """`answer_loss` without early questions, and `right_answers`, from one reading of the contexts."""
    contexts, questions, labels = _on_device(model, batch)
    count = (labels != IGNORED).sum()
    if is_segmented(model):
        logits, loss = _asked_of_memory(model, batch)
        return loss, count, _right(logits, batch)
    logits_alone, behind = _asked_alone(model, batch)
    if behind is None:
        logits = model(torch.cat([contexts, questions.flatten(1)], 1)).logits[:, contexts.shape[1] - 1 : -1]
    else:
        last, state = behind
        logits = torch.cat([last, read_on(model, questions.flatten(1), state)[0][:, :-1]], 1)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    return (
        cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"),
        count,
        _right(logits_alone, batch),
    )


def _asked_of_memory(model: nn.Module, batch: QuestionBatch) -> tuple[Tensor, Tensor]:
    """Logits of the questions, and the sum of their losses, from the memory that the contexts left."""
    contexts, questions, labels = _on_device(model, batch)
    carried, _ = _after_contexts(model, contexts, questions.shape[1])
    output = _output_for(model, questions.flatten(0, 1), labels.flatten(0, 1), carried, skip_logits=False)
    return output.logits, output.loss


def _asked_alone(model: nn.Module, batch: QuestionBatch) -> tuple[Tensor, tuple[Tensor, Any] | None]:
    """Logits of the questions, and what the contexts left: logits of their last token, and the state.

    A model that loses its state (`reads_on`) reads each question with its context, and leaves None.
    """
    contexts, questions, _ = _on_device(model, batch)
    rows = torch.arange(len(contexts)).repeat_interleave(questions.shape[1])
    if not reads_on(model):
        return model(torch.cat([contexts[rows], questions.flatten(0, 1)], 1)).logits[:, contexts.shape[1] :], None
    state = None
    for block in contexts.split(BLOCK, 1):  # a memory of many pairs reads behind its state through an index
        logits, state = read_on(model, block, state, **last_logits(model))
    return read_on(model, questions.flatten(0, 1), fork(state, rows))[0], (logits[:, -1:], state)


def _right(logits: Tensor, batch: QuestionBatch) -> Tensor:
    """The share of right answers of each context, from the predictions of its questions (B * Q, t, vocabulary)."""
    counts, labels, questions = (part.to(logits.device) for part in (batch.counts, batch.labels, batch.questions))
    is_answer = labels != IGNORED
    number = is_answer.cumsum(-1)  # of each token of the answer, from 1 on; the last is its end, unless it is alone
    scored = is_answer & ((number == 1) | (number < number[..., -1:]))
    words = logits.argmax(-1).masked_fill(logits.amax(-1).isnan(), IGNORED).view_as(questions)  # NaN says nothing
    right = ((words[..., :-1] == questions[..., 1:]) | ~scored[..., 1:]).all(-1) & counts
    return (right.sum(1) / counts.sum(1)).double().cpu()


def _on_device(model: nn.Module, batch: QuestionBatch) -> tuple[Tensor, Tensor, Tensor]:
    device = next(model.parameters()).device
    return batch.contexts.to(device), batch.questions.to(device), batch.labels.to(device)


def _output_for(model: Any, rows: Tensor, labels: Tensor, carried: dict[str, Any], *, skip_logits: bool = True) -> Any:
    """The model's output for questions; its loss is the sum over the tokens with a label."""
    options = {"use_cache": True, "num_items_in_batch": 1, "skip_logits": skip_logits}
    return model(input_ids=rows, labels=labels, **options, **carried)


def _first_with_gradient(model: Any, contexts: Tensor) -> int:
    """How many segments of the contexts gradients do not flow through."""
    segments = -(-contexts.shape[1] // model.config.segment_size)
    return max(0, segments - (model.config.backprop_segments or segments))


def _after_contexts(
    model: Any, contexts: Tensor, times: int, keep_early: bool = False
) -> tuple[dict[str, Any], tuple[MemoryState, ...]]:
    """What a call of `model` takes to go on behind each context, `times` rows for each.

    A memory is not repeated: each of its rows serves several of the text. With `keep_early` also the memories after
    each segment.
    """
    ends = getattr(model.config, "segment_end_ids", None)  # where segments end at sentences, a question begins one
    needed = "be None where every segment is asked about"
    expect(not (ends and keep_early), "answer_loss", "segment_end_ids", needed, ends)
    is_open = ends is None and contexts.shape[1] % model.config.segment_size != 0
    options = {"skip_logits": True, "use_cache": is_open, "output_segment_states": keep_early}
    output = model(input_ids=contexts, **options)
    early = output.segment_states or ()
    if not is_open:
        return {"memory_state": output.memory_state}, early
    return {"past_key_values": output.past_key_values.repeat_batch(times)}, early
