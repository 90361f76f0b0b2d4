"""Many-shot classification with any language model and its own tokenizer (Memory Mosaics v2, section 5.3)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

from tqdm import tqdm
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from tessera.base.beginnings import prompt_tokens
from tessera.evaluation.continuations import Request, continuation_likelihoods
from tessera.models.transformer import context_limit, expect_positions
from tessera.papers.many_shot.task import DELIMITERS, STRATEGIES, Episode, Example, Template, draw_episode
from tessera.papers.records import mean_of
from tessera.tasks.task import Estimate


class LabelledTexts(NamedTuple):
    """A data set: examples to show and texts to ask about, by class, and how a prompt is written."""

    demonstrations: Mapping[str, Sequence[Example]]
    queries: Mapping[str, Sequence[Example]]
    template: Template


def many_shot_scores(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: LabelledTexts,
    shots: Sequence[int],
    *,
    anonymous: bool = False,
    contexts: int = 10,
    queries: int = 10,
    batch_size: int = 8,
    seed: int = 0,
    progress: bool = False,
    rows: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Shots -> "delimiter, order" and "best" -> score -> mean, standard error over contexts, count.

    `exact_match`: the greedy continuation up to the end of the line is the label. `likeliest_label`: of all labels of
    the context, with the end of their line, the right one has the highest log-likelihood. "best" is the strategy with
    the highest `exact_match` at this number of shots, as in the paper. The same contexts and queries are used with both
    delimiters.

    Args:
        anonymous: "class 1", ... instead of the labels' own names. contexts: for each number of shots and strategy.
            queries: of each context, which is read once for all of them. rows: a list that gets one for each query:
            the prompt, the right label, the one that is given, and the scores.
    Raises `TesseraError`: a prompt longer than the model's learned positions, or a class with too few examples.
    """
    outcome: dict[str, Any] = {}
    drawn, total = _drawn(texts, shots, anonymous, contexts, queries, seed), len(shots) * len(STRATEGIES)
    for count, strategy, episodes in tqdm(drawn, disable=not progress, unit=" strategies", total=total):
        delimiter, answers = strategy.split(", ")[0], []
        for episode in episodes:
            ask = partial(requests_of, model, tokenizer, texts.template, episode, delimiter)
            answers.append(episode_answers(model, episode, ask, batch_size))
            for query, answer in zip(episode.queries, answers[-1]):
                prompt = texts.template.prompt(episode.demonstrations, query, delimiter)
                about = {"shots": count, "strategy": strategy, "prompt": prompt, "question": query.text}
                if rows is not None:
                    rows.append({**about, "target": query.label, "answer": answer.label, **answer.scores})
        scores = {name: estimate._asdict() for name, estimate in over_contexts(answers).items()}
        outcome.setdefault(str(count), {})[strategy] = scores
    for by_strategy in outcome.values():
        by_strategy["best"] = max(by_strategy.values(), key=lambda scores: scores["exact_match"]["mean"])
    return outcome


def expect_room(
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    texts: LabelledTexts,
    shots: Sequence[int],
    **options: Any,
) -> None:
    """Raise `TesseraError` unless every prompt of `many_shot_scores` fits a model of `config`: before any is asked."""
    drawn_contexts = _drawn(texts, shots, **options)
    for _, strategy, episodes in drawn_contexts if context_limit(config) is not None else ():
        for episode, query in ((drawn, query) for drawn in episodes for query in drawn.queries):
            prompt = texts.template.prompt(episode.demonstrations, query, strategy.split(", ")[0])
            answer = max(episode.labels, key=lambda label: len(tokenizer(f" {label}\n")["input_ids"]))
            tokens = len(prompt_tokens(tokenizer, f"{prompt} {answer}\n"))
            expect_positions(config, tokens, "many_shot", "the tokens of a prompt", "Use fewer shots.")


def _drawn(
    texts: LabelledTexts, shots: Sequence[int], anonymous=False, contexts=10, queries=10, seed=0, batch_size=8
) -> Iterator[tuple[int, str, Iterator[Episode]]]:
    """(shots, strategy, its contexts): the same for every model."""
    classes = list(texts.queries)
    for count in shots:
        for strategy in STRATEGIES:
            order = strategy.split(", ")[1]
            draw = partial(draw_episode, texts.demonstrations, texts.queries, classes, count, order, anonymous)
            random = Random(f"{seed} {count} {order}")
            yield count, strategy, (draw(random, queries) for _ in range(contexts))


class Answered(NamedTuple):
    """The label that is likeliest, and whether it and the greedy continuation are right, by the names of the scores."""

    label: str
    scores: dict[str, bool]


def episode_answers(
    model: PreTrainedModel, episode: Episode, ask: Callable[[Example], list[Request]], batch_size: int
) -> list[Answered]:
    """Of one context, query by query. `ask(query)`: a request for each of the context's labels."""
    requests = [request for query in episode.queries for request in ask(query)]
    likelihoods = iter(continuation_likelihoods(model, requests, batch_size=batch_size))
    answers = []
    for query in episode.queries:
        of_labels = {label: next(likelihoods) for label in episode.labels}
        label = max(of_labels, key=lambda name: of_labels[name].log_likelihood)
        scores = {"exact_match": of_labels[query.label].is_greedy, "likeliest_label": label == query.label}
        answers.append(Answered(label, scores))
    return answers


def over_contexts(answers: Sequence[Sequence[Answered]]) -> dict[str, Estimate]:
    """Each score: the share of right queries of each context, over contexts; queries of one are not independent."""
    names = answers[0][0].scores
    return {
        name: mean_of([fmean(answer.scores[name] for answer in of_context) for of_context in answers]) for name in names
    }


def requests_of(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, template: Template, episode: Episode,
    delimiter: str, query: Example,
) -> list[Request]:  # fmt: skip
    """See `episode_answers`; with the end of the line, without which "class 1" is never less likely than "class 10"."""
    prompt, between = template.prompt(episode.demonstrations, query, delimiter), DELIMITERS[delimiter]
    return [request_of(model, tokenizer, prompt, f"{between}{label}\n") for label in episode.labels]


def request_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompt: str, answer: str) -> Request:
    """The tokens of a prompt and of what follows it: those of both together, cut behind the prompt's."""
    context, tokens = (prompt_tokens(tokenizer, text) for text in (prompt, prompt + answer))
    if tokens[: len(context)] != context or len(tokens) == len(context):  # the tokenizer merges across the border
        tokens = [*context, *tokenizer(answer, add_special_tokens=False)["input_ids"]]
    expect_positions(model.config, len(tokens), "many_shot", "the tokens of a prompt", "Use fewer shots.")
    return Request(context, tokens[len(context) :])
