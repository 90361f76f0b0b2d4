"""Many-shot classification with any language model and its own tokenizer (Memory Mosaics v2, section 5.3)."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from tqdm import tqdm

from tessera.base.errors import expect
from tessera.evaluation.continuations import Request, continuation_likelihoods
from tessera.models.transformer import context_limit
from tessera.papers.many_shot.files import Example
from tessera.papers.many_shot.prompts import DELIMITERS, STRATEGIES, Episode, Template, draw_episode
from tessera.tasks.task import Estimate, estimate

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class LabelledTexts(NamedTuple):
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
        random, classes = Random(f"{seed} {count} {order}"), list(texts.queries)
        shares = []
        for _ in range(contexts):
            episode = draw_episode(
                texts.demonstrations, texts.queries, classes, count, order, anonymous, random, queries
            )
            ask = partial(requests_of, model, tokenizer, texts.template, episode, delimiter)
            shares.append(episode_shares(model, episode, ask, batch_size))
        scores = {name: estimate._asdict() for name, estimate in over_contexts(shares).items()}
        outcome.setdefault(str(count), {})[strategy] = scores
    for by_strategy in outcome.values():
        by_strategy["best"] = max(by_strategy.values(), key=lambda scores: scores["exact_match"]["mean"])
    return outcome


def episode_shares(
    model: "PreTrainedModel", episode: Episode, ask: Callable[[Example], list[Request]], batch_size: int
) -> dict[str, float]:
    """Of one context: the share of right queries by each score.

    `ask(query)`: a request for each of the context's labels, and one for all of the right answer.
    """
    asked = [ask(query) for query in episode.queries]
    answered = iter(continuation_likelihoods(model, [r for of_query in asked for r in of_query], batch_size=batch_size))
    exact = likeliest = 0
    for query in episode.queries:
        values = [next(answered).log_likelihood for _ in episode.labels]
        exact += next(answered).is_greedy
        likeliest += episode.labels[values.index(max(values))] == query.label
    return {"exact_match": exact / len(episode.queries), "likeliest_label": likeliest / len(episode.queries)}


def over_contexts(shares: Sequence[Mapping[str, float]]) -> dict[str, Estimate]:
    """Each score: the mean over contexts, whose queries are not independent."""
    return {name: estimate(torch.tensor([share[name] for share in shares], dtype=torch.float64)) for name in shares[0]}


def requests_of(
    model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", template: Template, episode: Episode,
    delimiter: str, query: Example,
) -> list[Request]:  # fmt: skip
    """What is asked about one query: see `episode_shares`."""
    prompt, between = template.prompt(episode.demonstrations, query, delimiter), DELIMITERS[delimiter]
    answers = [*(f"{between}{label}" for label in episode.labels), f"{between}{query.label}\n"]
    return [request_of(model, tokenizer, prompt, answer) for answer in answers]


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
    needed = f"fit the {longest} positions that this {model.config.model_type} has learned"
    fits = longest is None or len(tokens) <= longest
    expect(fits, "many_shot", "the prompt", needed, f"{len(tokens)} tokens", "Fewer shots.")
    return Request(context, tokens[len(context) :])
