"""Many-shot classification with any language model and its own tokenizer (Memory Mosaics v2, section 5.3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from tqdm import tqdm

from tessera.base.errors import expect
from tessera.evaluation.continuations import Request, continuation_likelihoods
from tessera.models.transformer import context_limit
from tessera.papers.many_shot.files import Example
from tessera.papers.many_shot.prompts import DELIMITERS, STRATEGIES, Episode, Template, draw_episode
from tessera.tasks.task import estimate

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SCORES = ("exact_match", "likeliest_label")


@dataclass(frozen=True)
class LabelledTexts:
    """A data set: examples to show and texts to ask about, by class, and how a prompt is written."""

    demonstrations: Mapping[str, Sequence[Example]]
    queries: Mapping[str, Sequence[Example]]
    template: Template


def many_shot_scores(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    texts: LabelledTexts,
    shots: Sequence[int],
    *,
    anonymous: bool = False,
    contexts: int = 10,
    queries: int = 10,
    batch_size: int = 8,
    seed: int = 0,
    progress: bool = False,
) -> dict[str, Any]:
    """Shots -> "delimiter, order" and "best" -> score -> mean, standard error over contexts, count.

    `exact_match`: the greedy continuation up to the end of the line is the label. `likeliest_label`: of all labels of
    the context the right one has the highest log-likelihood. "best" is the strategy with the highest `exact_match` at
    this number of shots, as in the paper. The same contexts and queries are used with both delimiters.

    Args:
        anonymous: "class 1", ... instead of the labels' own names. contexts: for each number of shots and strategy.
            queries: of each context, which is read once for all of them.
    Raises:
        TesseraError: a prompt longer than the model's learned positions, or a class with too few examples.
    """
    outcome: dict[str, Any] = {}
    steps = [(count, strategy) for count in shots for strategy in STRATEGIES]
    for count, strategy in tqdm(steps, disable=not progress, unit=" strategies"):
        delimiter, order = strategy.split(", ")
        random = Random(f"{seed} {count} {order}")
        episodes = [
            draw_episode(
                texts.demonstrations, texts.queries, list(texts.queries), count, order, anonymous, random, queries
            )
            for _ in range(contexts)
        ]
        shares = [_shares(model, tokenizer, texts.template, one, delimiter, batch_size) for one in episodes]
        scores = {name: estimate(torch.tensor([share[name] for share in shares]))._asdict() for name in SCORES}
        outcome.setdefault(str(count), {})[strategy] = scores
    for by_strategy in outcome.values():
        by_strategy["best"] = max(by_strategy.values(), key=lambda scores: scores["exact_match"]["mean"])
    return outcome


def _shares(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    template: Template,
    episode: Episode,
    delimiter: str,
    batch_size: int,
) -> dict[str, float]:
    """Of one context: the share of right queries by each score."""
    between, requests = DELIMITERS[delimiter], []
    for query in episode.queries:
        prompt = template.prompt(episode.demonstrations, query, delimiter)
        answers = [*(f"{between}{label}" for label in episode.labels), f"{between}{query.label}\n"]
        requests += [request_of(model, tokenizer, prompt, answer) for answer in answers]
    answered = continuation_likelihoods(model, requests, batch_size=batch_size)
    per_query = len(episode.labels) + 1
    exact = likeliest = 0
    for place, query in enumerate(episode.queries):
        *labels, right_answer = answered[place * per_query : (place + 1) * per_query]
        exact += right_answer.is_greedy
        best = max(range(len(labels)), key=lambda number: labels[number].log_likelihood)
        likeliest += episode.labels[best] == query.label
    return {"exact_match": exact / len(episode.queries), "likeliest_label": likeliest / len(episode.queries)}


def request_of(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", prompt: str, answer: str) -> Request:
    """The tokens of a prompt and of what follows it: those of both together, cut behind the prompt's.

    Raises:
        TesseraError: more tokens than the model has learned positions.
    """
    context = tokenizer(prompt)["input_ids"]
    tokens = tokenizer(prompt + answer)["input_ids"]
    if tokens[: len(context)] != context or len(tokens) == len(context):  # the tokenizer merges across the border
        tokens = [*context, *tokenizer(answer, add_special_tokens=False)["input_ids"]]
    longest = context_limit(model.config)
    where, kind = "many_shot", model.config.model_type
    needed = f"fit the {longest} positions that this {kind} has learned"
    expect(
        longest is None or len(tokens) <= longest, where, "the prompt", needed, f"{len(tokens)} tokens", "Fewer shots."
    )
    return Request(context, tokens[len(context) :])
