"""Answers to questions that are asked behind a memory, and how sure the model is of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from tessera.base.errors import expect
from tessera.base.state import State
from tessera.generation.sampling import (
    LEAST_TEMPERATURE,
    RequireNumbers,
    Sampling,
    continuation,
    prompt_tokens,
    text_behind,
)
from tessera.memory_files.certainty import Certainty
from tessera.models.carried_state import logits_behind, read_document, read_on, state_name
from tessera.models.causality import trial_tokens
from tessera.models.forking import apart
from tessera.models.stack_state import StackState
from tessera.tasks.question_answering import NOT_IN_TEXT

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from tessera.memory_files.citations import Citation

CARRIED = 0.5  # of probability that each token of an answer loses without the passage that carried it
LEAST_SHOWN_DROP = 0.0005  # of a citation in words, which has three digits
QUESTION_FORMAT = "question_format"  # of a tokenizer without a token that asks for an answer
GREEDY = Sampling(max_new_tokens=50, temperature=0.0)


@dataclass(frozen=True)
class Answer:
    """What a model says to a question.

    Attributes:
        probability: of all its tokens one after the other, the model's own; NaN by beam search.
        question, tokens: what was read and what was said, (T,) integers. citations: the passages that carried the
            answer, the strongest first; None where they were not asked for. certainty: the probability that the text
            answers the question (`Certainty`); None where that was not measured.
    """

    text: str
    probability: float
    question: Tensor
    tokens: Tensor
    citations: "tuple[Citation, ...] | None" = None
    certainty: float | None = None

    @property
    def carried(self) -> float:
        """What each token of the answer loses of its probability without the passage that carried it most.

        By their geometric mean, that is; of a single token its probability.
        """
        power, full = 1 / max(1, len(self.tokens)), self.probability
        return max(
            (full**power - max(0.0, full - citation.drop) ** power for citation in self.citations or ()), default=0.0
        )

    @property
    def is_in_text(self) -> bool:
        """Whether the text answers, by `certainty`; where that was not measured, whether `carried` is enough.

        It does not where the answer says so itself.
        """
        if self.text == NOT_IN_TEXT:
            return False
        return self.carried >= CARRIED if self.certainty is None else self.certainty >= 0.5

    def said(self) -> str:
        """The answer of a model that was trained on questions, with how sure it is, as a line of text."""
        own = f"{self.text} ({100 * self.probability:.1f} %"
        if self.certainty is None or self.text == NOT_IN_TEXT:
            return f"{own})"
        if self.is_in_text:
            return f"{own}; that the text says so: {100 * self.certainty:.0f} %)"
        return f"{NOT_IN_TEXT} ({100 - 100 * self.certainty:.0f} %; its guess is {own}))"

    def sources(self) -> str:
        """As lines of text the citations without which the answer is less probable, or else the first."""
        citations = self.citations or ()
        shown = [citation for citation in citations if citation.drop >= LEAST_SHOWN_DROP] or citations[:1]
        lines = [
            f"  {citation.document}, bytes {citation.first:,}-{citation.end:,}: {' '.join(citation.text.split())}\n"
            f"    {100 * citation.weight:.1f} % of what was recalled; without it the answer is "
            f"{round(citation.drop, 3) + 0.0:.3f} less probable"
            for citation in shown
        ]
        return "\n".join([*([] if self.is_in_text else ["  not in this text: no passage carries the answer"]), *lines])


def answers_questions(tokenizer: "PreTrainedTokenizerFast") -> bool:
    """Whether a model with this tokenizer was trained on `data.task`: it keeps how a question is put."""
    return question_format(tokenizer) is not None


def question_format(tokenizer: "PreTrainedTokenizerFast") -> str | None:
    """How the training put a question, a text with "{question}" in it; None: there were none."""
    answer_token = getattr(tokenizer, "answer_token", None)
    if answer_token is not None:
        return f"{{question}} {answer_token}"
    kept = tokenizer.init_kwargs.get(QUESTION_FORMAT)
    needed = 'be a text with "{question}" in it'
    expect(kept is None or "{question}" in str(kept), "tokenizer_config.json", QUESTION_FORMAT, needed, repr(kept))
    return kept


def require_known_words(tokenizer: "PreTrainedTokenizerFast", text: str, what: str) -> None:
    """Raise `TesseraError` for words that the tokenizer has no token for: the model cannot tell them apart."""
    read = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    pairs = zip(read["input_ids"], read["offset_mapping"])
    unknown = [text[first:last] for token, (first, last) in pairs if token == tokenizer.unk_token_id]
    listed = ", ".join(dict.fromkeys(unknown))
    expect(not unknown, "ask", what, "be of words that the model knows", f"{text!r}: it does not know {listed}")


@torch.no_grad()
def expect_answers(
    model: Any,
    tokenizer: "PreTrainedTokenizerFast",
    questions: Sequence[str],
    sampling: Sampling = GREEDY,
    where: str = "ask",
) -> None:
    """Raise `TesseraError` for what would be refused behind any text: called before a long one is read.

    Beams, where the model's state cannot be copied for each; a question without tokens, of unknown words where the
    model was trained on questions, or longer than its positions.
    """
    is_trained = answers_questions(tokenizer)
    if sampling.num_beams > 1 and not is_trained:
        _expect_beams(read_document(model, trial_tokens(model)[0, :1], None, where), where)
    for question in questions:
        if is_trained:
            require_known_words(tokenizer, question, "QUESTION")
        prompt_tokens(model, tokenizer, question, _most_tokens(model, tokenizer, sampling), where)


def _most_tokens(model: Any, tokenizer: "PreTrainedTokenizerFast", sampling: Sampling) -> int:
    """Of an answer."""
    is_trained = answers_questions(tokenizer)
    return (model.generation_config.max_new_tokens or 1) if is_trained else sampling.max_new_tokens


def _expect_beams(state: Any, where: str) -> None:
    expect(isinstance(state, State), where, "num_beams", "be 1 with this model's cache", "more")


@torch.no_grad()
def answer(
    model: Any,
    tokenizer: "PreTrainedTokenizerFast",
    question: str,
    state: Any,
    sampling: Sampling = GREEDY,
    where: str = "ask",
    write: Callable[[str], None] | None = None,
) -> Answer:
    """The answer to `question` behind `state`, which stays as it is.

    A model that was trained on questions says its likeliest word, others continue the text. `write` gets the answer
    piece by piece as it comes.
    Raises `TesseraError`: a question without tokens, more than the model has positions for, or logits that are not
    finite.
    """
    put = question_format(tokenizer)
    is_trained = put is not None
    most = _most_tokens(model, tokenizer, sampling)
    ids = prompt_tokens(model, tokenizer, question, most, where, state)  # an empty question is an error
    if put is not None:
        ids = prompt_tokens(model, tokenizer, put.replace("{question}", question), most, where, state)
    elif sampling.num_beams > 1:
        if state is not None:
            _expect_beams(state, where)
        read = 0 if state is None or state_name(model) == "memory_state" else state.get_seq_length()
        if read:
            state = state.select_batch(torch.zeros(sampling.num_beams, dtype=torch.long, device=ids.device))
        options = {} if state is None else {"read": read, state_name(model): state}
        text = continuation(model, tokenizer, question, sampling, where=where, **options)
        if write is not None:
            write(text)
        return Answer(text, float("nan"), ids[0], ids[0, :0])
    chosen, probability = _chosen_tokens(model, tokenizer, ids, state, sampling, most, where, write)
    if is_trained:
        says_nothing = chosen[0] == tokenizer.unk_token_id
        text = NOT_IN_TEXT if says_nothing else tokenizer.decode(chosen).removesuffix(tokenizer.eos_token).strip()
    else:
        text = text_behind(tokenizer, int(ids[0, -1]), chosen.tolist())
    certainty, measured = None, Certainty.of(model) if is_trained else None
    if measured is not None:
        logits, without = (logits_behind(model, ids, before)[:, -1] for before in (state, None))
        certainty = float(measured.probabilities(logits, without, tokenizer.unk_token_id))
    return Answer(text, probability, ids[0], chosen, certainty=certainty)


def _chosen_tokens(model, tokenizer, ids, state, sampling, most, where, write) -> tuple[Tensor, float]:
    processors, end = LogitsProcessorList([RequireNumbers(where)]), model.generation_config.eos_token_id
    ends = set(end) if isinstance(end, (list, tuple)) else {end}
    is_sampled = most > 1 and sampling.temperature > LEAST_TEMPERATURE
    generator = torch.Generator().manual_seed(sampling.seed)  # this call's own: other draws, and threads, go on
    if is_sampled:
        processors.append(TemperatureLogitsWarper(sampling.temperature))
        if sampling.top_k:
            processors.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1:
            processors.append(TopPLogitsWarper(sampling.top_p))
    if answers_questions(tokenizer):
        ends.add(tokenizer.unk_token_id)  # "not in this text" is the whole answer
    tokens: list[int] = []
    new, before, state, total, written = ids, state, apart(state), 0.0, ""
    while len(tokens) < most:
        logits, state = read_on(model, new, state)
        last = logits[:, -1].float()
        scores = processors(ids, last)
        new = last.argmax(-1, keepdim=True)
        if is_sampled:
            new = torch.multinomial(scores.softmax(-1).cpu(), 1, generator=generator).to(new.device)
        tokens.append(int(new))
        total += float(last.log_softmax(-1)[0, tokens[-1]])
        if tokens[-1] in ends:
            break
        if write is not None and not (text := text_behind(tokenizer, int(ids[0, -1]), tokens)).endswith("\ufffd"):
            write(text[len(written) :])
            written = text
    if isinstance(before, StackState):
        before.reclaim(state)
    return torch.tensor(tokens), float(torch.tensor(total, dtype=torch.float64).exp())
