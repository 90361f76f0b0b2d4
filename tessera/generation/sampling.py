"""Continuations of a text by a model: sampled, the likeliest token each time, or by beam search."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerFast, TextStreamer

from tessera.base.arguments import explain_all
from tessera.base.beginnings import opening_tokens
from tessera.base.errors import TesseraError, expect, expect_text
from tessera.base.random_numbers import random_numbers_kept
from tessera.data.text_files import text_of_file
from tessera.models.carried_state import state_name
from tessera.models.causality import trial_tokens
from tessera.models.drafted_generation import DraftedGeneration
from tessera.models.transformer import context_limit

MOST_BEAMS = 10_000  # each is a row of a batch
LEAST_TEMPERATURE = 1e-6  # logits divided by less may overflow

# Of `generate`: what leaves the probabilities as they are, and samples among all tokens.
UNCHANGED: dict[str, Any] = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "guidance_scale": 1.0}
UNCHANGED |= {"min_length": 0, "min_new_tokens": 0, "num_return_sequences": 1, "length_penalty": 1.0}
UNCHANGED |= {"encoder_repetition_penalty": 1.0, "exponential_decay_length_penalty": None}
EVERY_LIKELY_TOKEN = {"typical_p": 1.0, "min_p": 0.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "top_h": None}


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    max_new_tokens : stop after so many. temperature : of the softmax; at most 1e-6: the likeliest token. top_k :
    sample among the k likeliest (0: all). top_p : among the likeliest of this total probability. num_beams : beam
    search of this width (1: none), which takes no samples. seed : of the samples.
    """

    max_new_tokens: int = 200
    temperature: float = 0.8
    top_k: int = 50
    top_p: float = 1.0
    num_beams: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            kind, least = type(getattr(Sampling, name)), name in ("max_new_tokens", "num_beams")
            is_number = isinstance(value, int | kind) and not isinstance(value, bool)
            requirement = f"be {'a whole number' if kind is int else 'a number'} of at least {least:d}, below 2^31"
            expect(is_number and least <= value < 2**31, "Sampling", name, requirement, repr(value))
        expect(self.num_beams <= MOST_BEAMS, "Sampling", "num_beams", f"be at most {MOST_BEAMS:,}", self.num_beams)
        expect(0 < self.top_p <= 1, "Sampling", "top_p", "lie in (0, 1]", self.top_p)

    @property
    def arguments(self) -> dict[str, Any]:
        """These settings as keywords of transformers' `generate`, which would take others from the model's folder.

        Tokens that its generation_config.json bans or forces stay so.
        """
        samples = self.temperature > LEAST_TEMPERATURE and self.num_beams == 1
        chosen = {"do_sample": samples, "num_beams": self.num_beams, "max_new_tokens": self.max_new_tokens, **UNCHANGED}
        if samples:
            own = {"temperature": float(self.temperature), "top_k": self.top_k, "top_p": self.top_p}
            chosen |= own | EVERY_LIKELY_TOKEN
        return chosen


def prompt_tokens(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompt: str,
    max_new_tokens: int,
    where: str,
    state: Any = None,
) -> Tensor:
    """Token ids (1, T) of a prompt, the beginning of a text unless behind `state`, and room for so many tokens.

    Raises `TesseraError`: no tokens, tokens that the model does not know, or more than its positions hold.
    """
    expect_text(prompt, where)
    own = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    expect(len(own) > 0, where, "the prompt", "hold at least one token", "an empty text")
    ids = torch.tensor([own if state is not None else [*opening_tokens(tokenizer), *own]])
    largest, size = int(ids.max()), model.config.get_text_config().vocab_size
    advice = "The folder holds another model's tokenizer."
    expect(largest < size, where, "the tokenizer", f"fit the model (vocab_size {size})", f"token id {largest}", advice)
    if (longest := context_limit(model.config)) is not None:
        length = ids.shape[1] + (0 if state is None else state.get_seq_length())
        remaining = longest - length
        advice = f"Use --max-new-tokens {remaining}." if remaining > 0 else "Use a shorter prompt."
        requirement = f"fit the {longest} positions that this {model.config.model_type} has learned"
        total = f"{length} + {max_new_tokens}"
        expect(max_new_tokens <= remaining, where, "tokens of the prompt and new ones", requirement, total, advice)
    return ids.to(model.device)


def continuation(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    prompt: str,
    sampling: Sampling,
    *,
    stream: bool = False,
    where: str = "generate",
    read: int = 0,
    **inputs: Any,
) -> str:
    """What `model` writes after `prompt`; `inputs` are further arguments of `generate`, such as `memory_state`.

    `read`: tokens that `past_key_values` holds; `generate` counts them and does not read them. With `stream`, prompt
    and continuation are printed, token by token where no beam search chooses at the end.
    """
    ids = prompt_tokens(model, tokenizer, prompt, sampling.max_new_tokens, where, inputs.get(state_name(model)))
    if inputs.get("prompt_lookup_num_tokens") is not None:
        _expect_drafts(model, where)
    ids = torch.cat([ids.new_zeros(1, read), ids], dim=1)
    streamer = TextStreamer(tokenizer, skip_special_tokens=True) if stream and sampling.num_beams == 1 else None
    with random_numbers_kept():  # `generate` takes no generator
        torch.manual_seed(sampling.seed)
        tokens = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pad_token_id=tokenizer.pad_token_id,
            streamer=streamer,
            logits_processor=LogitsProcessorList([RequireNumbers(where)]),
            **sampling.arguments,
            **inputs,
        )
    if stream and streamer is None:
        print(tokenizer.decode(tokens[0], skip_special_tokens=True))
    return text_behind(tokenizer, int(ids[0, -1]), tokens[0, ids.shape[1] :].tolist())


def text_behind(tokenizer: PreTrainedTokenizerFast, before: int, tokens: Sequence[int]) -> str:
    """The text of `tokens` behind a token `before`; Llama's and T5's leave out a blank in front of what they decode."""
    first, both = (tokenizer.decode(each, skip_special_tokens=True) for each in ([before], [before, *tokens]))
    return both.removeprefix(first)


def _expect_drafts(model: PreTrainedModel, where: str) -> None:
    """Raise `TesseraError` where transformers could not go back behind a wrong guess: its errors are of anything."""
    if isinstance(model, DraftedGeneration):
        return
    with torch.no_grad():
        state = None if model._is_stateful else model(trial_tokens(model), use_cache=True).get("past_key_values")
    requirement, kind = "be left out for a model without a cache that can be cut back", type(model).__name__
    expect(hasattr(state, "crop"), where, "--prompt-lookup", requirement, kind)


class RequireNumbers(LogitsProcessor):
    """An error if the logits hold NaN, whose argmax would be an arbitrary token."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """See `LogitsProcessor`; raises `TesseraError`."""
        is_number = not bool((torch.isnan(scores) | torch.isposinf(scores)).any())
        expect(is_number, self.where, "the model's logits", "be finite", "NaN or infinity", "Its training diverged.")
        return scores


STORIES = "stories"
STORY_PROMPTS = Path(__file__).parent / "story_prompts.txt"


def read_prompts(name: str) -> list[str]:
    """The lines of a text file that hold something; "stories" names the 24 prompts of Eldan and Li (2023).

    Raises `TesseraError`: no such file, not UTF-8, or no line in it.
    """
    path = STORY_PROMPTS if name == STORIES else Path(name)
    try:
        lines = "".join(text_of_file(path)).splitlines()
    except TesseraError as error:
        message = f"generate: --prompts must be a text file with a prompt in each line, or {STORIES!r}; got {error}"
        raise TesseraError(message) from None
    prompts = [line.rstrip() for line in lines if line.strip()]
    if not prompts:
        raise TesseraError(f"generate: --prompts must hold a prompt in each line; got {name!r}, which holds none.")
    return prompts


def markdown_table(prompts: Sequence[str], continuations: Mapping[str, Sequence[str]]) -> str:
    """A row for each prompt, a column for each model; text is escaped, so that it cannot be read as Markdown or HTML.

    >>> print(markdown_table(["a|b"], {"model": ["<c>"]}))
    | prompt | model |
    |---|---|
    | a\\|b | &lt;c&gt; |
    """
    columns = [prompts, *continuations.values()]
    rows = [["prompt", *map(_escaped, continuations)], *([_escaped(cell) for cell in row] for row in zip(*columns))]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(columns), *lines[1:]])


def _escaped(text: str) -> str:
    text = html.escape(" ".join(text.strip().splitlines()), quote=False)
    return "".join("\\" * (letter in "\\|`*_[]") + letter for letter in text)


explain_all(globals(), ("prompt_tokens", "continuation"))
