"""Answers of models that were trained on questions: one word, and how sure the model is of it."""

from typing import TYPE_CHECKING, NamedTuple

import torch

from tessera.base.errors import expect
from tessera.generation.sampling import prompt_tokens
from tessera.models.recurrence import MemoryState

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


class Answer(NamedTuple):
    """A word and its probability, the model's own: nothing calibrates it."""

    word: str
    probability: float


def answers_questions(tokenizer: "PreTrainedTokenizerFast") -> bool:
    """Whether a model with this tokenizer was trained on `data.task`: it keeps the token that asks for an answer."""
    return getattr(tokenizer, "answer_token", None) is not None


def require_known_words(tokenizer: "PreTrainedTokenizerFast", text: str, what: str, where: str = "ask") -> None:
    """Raise `TesseraError` for words that the tokenizer has no token for: the model cannot tell them apart."""
    unknown = ", ".join(_unknown_words(tokenizer, text))
    expect(not unknown, where, what, "be of words that the model knows", f"{text!r}: it does not know {unknown}")


def _unknown_words(tokenizer: "PreTrainedTokenizerFast", question: str) -> list[str]:
    """The words of a text that the tokenizer has no token for, in their order."""
    read = tokenizer(question, add_special_tokens=False, return_offsets_mapping=True)
    unknown = tokenizer.unk_token_id
    if unknown is None:
        return []
    pairs = zip(read["input_ids"], read["offset_mapping"])
    return list(dict.fromkeys(question[first:last] for token, (first, last) in pairs if token == unknown))


@torch.no_grad()
def answer(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerFast",
    question: str,
    memory: MemoryState | None,
    where: str = "ask",
) -> Answer:
    """The likeliest word after `question`, asked of `memory` in a segment of its own; None: of a model without one.

    Raises:
        TesseraError: a question without tokens, or logits that are not finite.
    """
    prompt_tokens(model, tokenizer, question, 1, where)  # an empty question is an error
    tokens = prompt_tokens(model, tokenizer, f"{question} {tokenizer.answer_token}", 1, where)
    has_read = memory is not None and bool(memory.segments_read.any())
    inputs = {"memory_state": memory} if has_read else {}
    logits = model(input_ids=tokens, use_cache=True, logits_to_keep=1, **inputs).logits[0, -1].float()
    is_number = bool(logits.isfinite().all())
    expect(is_number, where, "the model's logits", "be finite", "NaN or infinity", "Its training diverged.")
    probability, word = logits.softmax(-1).max(-1)
    return Answer(tokenizer.decode([int(word)]).strip(), float(probability))
