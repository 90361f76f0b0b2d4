"""Lossless generation with drafts: several tokens are guessed, read at once, and kept as far as the model agrees.

transformers refuses this to models with a state, because a cache must be cropped where a guess was wrong. A state of
this library is a value: going back is to go on from the state before. What is generated is what is generated without
drafts: greedily the same tokens, by sampling the same distribution (Leviathan et al. 2023, algorithm 1, for drafts that
are certain: a guess x is kept with probability p(x), else a token is drawn from p without x).
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.generation.utils import GenerateDecoderOnlyOutput

from tessera.base.errors import expect
from tessera.base.state import State

LONGEST_UNREAD = 8  # tokens that are read again behind the last state before a step without a draft ends this
LONGEST_PAUSE = 32  # steps without a draft where drafts were wrong
WHERE = "generate"


class Drafter(Protocol):
    """Who guesses."""

    def draft(self, tokens: list[int], most: int) -> list[int]:
        """At most `most` tokens that may follow `tokens`."""


class PromptLookup:
    """Guesses what followed the last n tokens where they stood before, n as large as possible."""

    def __init__(self, longest_match: int) -> None:
        self.sizes = range(longest_match, 0, -1)
        self.places: dict[tuple[int, ...], int] = {}  # n tokens -> where what follows them begins
        self.seen = 0

    def draft(self, tokens: list[int], most: int) -> list[int]:
        """See `Drafter`."""
        for end in range(self.seen, len(tokens)):
            for size in self.sizes:
                if end >= size:
                    self.places[tuple(tokens[end - size : end])] = end
        self.seen = len(tokens)
        for size in self.sizes:
            place = self.places.get(tuple(tokens[-size:])) if len(tokens) > size else None
            if place is not None:
                return tokens[place : place + most]
        return []


class AssistantModel:
    """Guesses what another model generates greedily."""

    def __init__(self, model: Any) -> None:
        self.model, self.state, self.read = model, None, 0

    def draft(self, tokens: list[int], most: int) -> list[int]:
        """See `Drafter`."""
        ids = torch.tensor([tokens], device=self.model.device)
        if len(tokens) - 1 > self.read:
            output = self.model(ids[:, self.read : -1], past_key_values=self.state, use_cache=True)
            self.state, self.read = output.past_key_values, len(tokens) - 1
        # Drafted tokens must not stay in what the assistant has read.
        state = self.state if isinstance(self.state, State) else copy.deepcopy(self.state)
        drafted, last = [], ids[:, -1:]
        for _ in range(most):
            output = self.model(last, past_key_values=state, use_cache=True)
            state, last = output.past_key_values, output.logits[:, -1:].argmax(-1)
            drafted.append(int(last))
        return drafted


class DraftedGeneration:
    """Gives `generate` of a model whose state is a value `prompt_lookup_num_tokens` and `assistant_model`."""

    def generate(
        self,
        *arguments: Any,
        prompt_lookup_num_tokens: int | None = None,
        max_matching_ngram_size: int | None = None,
        assistant_model: Any = None,
        num_assistant_tokens: int | None = None,
        **options: Any,
    ) -> Any:
        """See transformers' `generate`; with drafts for one sequence, lossless, as the module says.

        Args:
            prompt_lookup_num_tokens: guess up to so many tokens from earlier in the text, after the longest match of up
                to `max_matching_ngram_size` (3) tokens.
            assistant_model: a smaller model of the same vocabulary that guesses `num_assistant_tokens` (5) tokens.
        Raises:
            TesseraError: several sequences or beams, or both kinds of draft.
        """
        generate: Callable[..., Any] = super().generate  # type: ignore[misc]  # of GenerationMixin
        if prompt_lookup_num_tokens is None and assistant_model is None:
            return generate(*arguments, **options)
        one_kind = prompt_lookup_num_tokens is None or assistant_model is None
        expect(
            one_kind, WHERE, "prompt_lookup_num_tokens and assistant_model", "be given one without the other", "both"
        )
        drafter: Drafter
        if assistant_model is None:
            drafter, most = PromptLookup(max_matching_ngram_size or 3), prompt_lookup_num_tokens or 0
        else:
            drafter, most = AssistantModel(assistant_model), num_assistant_tokens or 5
        expect(isinstance(most, int) and most >= 1, WHERE, "the number of drafted tokens", "be at least 1", most)
        return generate(*arguments, custom_generate=partial(_generate, drafter=drafter, most=most), **options)


class _DraftLength:
    """How many tokens to guess: twice as many after a right draft, fewer and then none for a while after wrong ones."""

    def __init__(self, most: int) -> None:
        self.most, self.length, self.pause, self.waiting = most, min(4, most), 1, 0

    def next(self) -> int:
        if self.waiting:
            self.waiting -= 1
            return 0
        return self.length

    def learn(self, drafted: int, kept: int) -> None:
        if drafted == 0:
            return
        if kept == drafted:
            self.length, self.pause = min(self.most, 2 * self.length), 1
        elif kept == 0:
            self.length, self.waiting = max(1, self.length // 2), self.pause
            self.pause = min(LONGEST_PAUSE, 2 * self.pause)


def _generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    synced_gpus: bool = False,
    streamer: Any = None,
    *,
    drafter: Drafter,
    most: int,
    **model_kwargs: Any,
) -> Tensor | GenerateDecoderOnlyOutput:
    """What `generate` does for one sequence, several tokens a call where drafts are right."""
    expect(len(input_ids) == 1, WHERE, "a prompt with drafts", "be one sequence", f"{len(input_ids)} sequences")
    mask = model_kwargs.get("attention_mask")
    padded = mask is not None and not bool(mask.all())
    expect(not padded, WHERE, "a prompt with drafts", "be without padding", "an attention_mask with zeros")
    state = model_kwargs.get("past_key_values")
    unread = input_ids[:, 0 if state is None else state.length :]
    if unread.shape[1] > 1:  # a wrong draft must not read the prompt again
        state = model(unread[:, :-1], past_key_values=state, use_cache=True, logits_to_keep=1).past_key_values
        unread = unread[:, -1:]
    length, is_over = _DraftLength(most), False
    while not is_over:
        room = generation_config.max_length - input_ids.shape[1] - 1
        number = min(length.next() if unread.shape[1] <= LONGEST_UNREAD else 0, room)
        draft = drafter.draft(input_ids[0].tolist(), number) if number > 0 else []
        guessed = torch.tensor([draft], dtype=input_ids.dtype, device=input_ids.device).view(1, -1)
        read = torch.cat([unread, guessed], 1)
        output = model(read, past_key_values=state, use_cache=True, logits_to_keep=len(draft) + 1)
        before = input_ids.shape[1]
        for step, logits in enumerate(
            output.logits[0].float() if output.logits.dtype.itemsize < 4 else output.logits[0]
        ):
            scores = logits_processor(input_ids, logits[None])
            guess = draft[step] if step < len(draft) else None
            token = _choose(scores[0], guess, generation_config.do_sample)
            input_ids = torch.cat([input_ids, input_ids.new_tensor([[token]])], 1)
            if streamer is not None:
                streamer.put(input_ids[:, -1].cpu())
            is_over = bool(stopping_criteria(input_ids, scores).all())
            if is_over or token != guess:
                break
        made = input_ids.shape[1] - before
        length.learn(len(draft), made - 1)
        if made == len(draft) + 1:
            state, unread = output.past_key_values, input_ids[:, -1:]
        else:  # the state holds wrong tokens: go on from the one before, and read the right ones with the next draft
            unread = torch.cat([unread, input_ids[:, before:]], 1)
    if streamer is not None:
        streamer.end()
    if generation_config.return_dict_in_generate:
        return GenerateDecoderOnlyOutput(sequences=input_ids)
    return input_ids


def _choose(scores: Tensor, guess: int | None, sampled: bool) -> int:
    """The next token: the likeliest, or drawn from softmax(scores), by way of a guess if there is one."""
    if not sampled:
        return int(scores.argmax())
    probabilities = scores.softmax(-1)
    if guess is not None:
        if bool(torch.rand((), device=scores.device) < probabilities[guess]):
            return guess
        probabilities = probabilities.index_fill(0, torch.tensor(guess, device=scores.device), 0.0)
    return int(torch.multinomial(probabilities, 1))
