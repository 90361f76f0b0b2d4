"""Scores of a language model on a task of the library, through the interface that every task has."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tessera.base.dataclass_io import from_json
from tessera.base.errors import TesseraError, did_you_mean, expect
from tessera.base.precision import autocast
from tessera.base.yaml_files import parse_yaml
from tessera.data.encoding import num_ids
from tessera.evaluation.provenance import provenance
from tessera.models.transformer import expect_positions
from tessera.ops.linear_cross_entropy import IGNORED
from tessera.tasks.question_answering import NOT_IN_TEXT, QuestionTask
from tessera.tasks.task import TASKS, Estimate, Task, TokenExamples, estimate

DRAWN_TOGETHER = 8  # examples of a seed


def make_task(name: str, settings: list[str], trained: Mapping[str, Any] | None = None) -> Task:
    """The task `name` with settings "key=value" (values in YAML) in the place of its defaults.

    Of a model that was `trained` on this task (a recipe's `data.task`), the defaults are the settings there.
    Raises `TesseraError`: an unknown task or setting, or a value that the task refuses.
    """
    cls = TASKS[name]
    known = {field.name for field in fields(cls)}
    values = {key: value for key, value in (trained or {}).items() if key != "name"}
    for setting in settings:
        key, equals, value = setting.partition("=")
        expect(bool(equals), "eval", "--set", "be key=value", repr(setting))
        if key not in known:
            raise TesseraError(f"eval: task {name} has no setting {key!r}. {did_you_mean(key, known)}")
        try:
            values[key] = parse_yaml(value, "eval", key)
        except TesseraError:
            raise TesseraError(f"eval: --set {key} must be a YAML value; got {value!r}.") from None
    try:
        return from_json(cls, values, f"eval: --set of task {name}")
    except TesseraError:
        raise
    except (TypeError, ValueError) as error:
        raise TesseraError(f"eval: task {name} refuses its settings ({' '.join(str(error).split())}).") from None


def expect_tokens_of(task: QuestionTask, tokenizer: PreTrainedTokenizerFast, name: str) -> None:
    """Raise `TesseraError` where the tokens of `task` are other words to the model: its scores would mean nothing."""
    tokens = [task.vocabulary.id_to_token(number) for number in range(num_ids(task.vocabulary))]
    if tokenizer.convert_ids_to_tokens(list(range(min(len(tokens), num_ids(tokenizer))))) != tokens:
        advice = "; --set tokenizer=FOLDER makes texts of a model's own" if hasattr(task, "tokenizer") else ""
        raise TesseraError(f"eval: the model must have learned the tokens of task {name}; got others{advice}.")


def score_task(
    model: PreTrainedModel,
    task: Task,
    *,
    examples: int = 256,
    batch_size: int = 8,
    seed: int = 0,
    precision: str = "fp32",
    rows: list[dict[str, Any]] | None = None,
) -> dict[str, Estimate]:
    """Each score of `task` on `examples` examples of its test split: mean and standard error.

    The task's tokens are the first ids of the model's vocabulary, and predictions are made among them alone. Which
    examples these are depends on `seed`, not on `batch_size`: how many are read at once, of `DRAWN_TOGETHER`. `rows`
    gets one for each example: prompt, target and answer, as text where the task has words, and its scores.
    Raises `TesseraError`: a task that is not about tokens, a vocabulary smaller than the task's, examples longer than
    the model's positions, or logits that are NaN.
    """
    size, needed = model.config.get_text_config().vocab_size, getattr(task, "vocab_size", None)
    if isinstance(task, QuestionTask):  # a tokenizer of its own may have more
        needed = num_ids(task.vocabulary)
    name = type(task).__name__
    expect(needed is not None, "eval", "--task", "be about tokens, which language models predict", name)
    expect(needed <= size, "eval", "the model", f"know {name}'s {needed} tokens", f"vocab_size {size}")
    firsts = range(0, examples, DRAWN_TOGETHER)
    batches = (task.sample(min(DRAWN_TOGETHER, examples - n), seed * 1_000_000 + n, "test") for n in firsts)

    def predictions(batch: TokenExamples) -> Tensor:
        expect(isinstance(batch, TokenExamples), "eval", "--task", "be about tokens", name)
        parts = [_logits(model, tokens, precision)[..., :needed] for tokens in batch.tokens.split(batch_size)]
        return torch.cat(parts)

    return score_batches(task, batches, predictions, None if rows is None else partial(_add_rows, rows, task))


def _add_rows(
    rows: list[dict[str, Any]], task: Task, batch: TokenExamples, logits: Tensor, scores: dict[str, Tensor]
) -> None:
    words, special = getattr(task, "vocabulary", None), getattr(task, "special_tokens", {})
    end = words.token_to_id(special["eos_token"]) if special else IGNORED  # type: ignore[union-attr]
    for number, (tokens, labels, predicted) in enumerate(zip(batch.tokens, batch.labels, logits.argmax(-1))):
        places = ((labels != IGNORED) & (labels != end)).nonzero()[:, 0]
        parts = {"prompt": tokens[: places[0]], "target": labels[places], "answer": predicted[places - 1]}
        shown = {name: _shown(words, part.tolist(), special.get("unk_token")) for name, part in parts.items()}
        rows.append({**shown, **{name: float(values[number]) for name, values in scores.items()}})


def _shown(words: Any, tokens: list[int], unknown: str | None) -> list[int] | str:
    """The tokens as text, of a task that has words; nothing that was read is left out."""
    if words is None:
        return tokens
    if isinstance(words, tuple):
        return " ".join(words[token] for token in tokens)
    text = words.decode(tokens, skip_special_tokens=False)
    return NOT_IN_TEXT if text == unknown else text


def scores_of_batch(task: Task, predicted: Tensor, batch: Any) -> dict[str, Tensor]:
    """The scores of `task` of each example.

    Raises `TesseraError`: predictions that are NaN, whose scores would be left out or those of the first token.
    """
    is_known = not bool(predicted.isnan().any())
    expect(is_known, type(task).__name__, "the model's predictions", "be numbers", "NaN")
    return task.scores(predicted, batch)


def score_batches(
    task: Task, batches: Iterable[Any], predictions: Callable[[Any], Any], see: Callable[..., None] | None = None
) -> dict[str, Estimate]:
    """Each score of `task` over the examples of all batches; `see` is shown each with predictions and scores."""
    values: dict[str, list[Tensor]] = {}
    sources: list[int] = []
    for batch in batches:
        predicted = predictions(batch)
        of_batch = scores_of_batch(task, predicted, batch)
        if see is not None:
            see(batch, predicted, of_batch)
        sources += task.sources(batch)
        for name, scores in of_batch.items():
            values.setdefault(name, []).append(scores)
    groups = torch.tensor(sources) if len(set(sources)) > 1 else None
    return {name: estimate(torch.cat(scores), groups) for name, scores in values.items()}


def task_report(
    model: PreTrainedModel,
    name: str,
    task: Task,
    lengths: list[int] | None,
    *,
    rows: list[dict[str, Any]] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """`score_task` at each of `lengths`, counted as the task does (None: at its own), as a JSON-ready record."""
    began, setting = time.time(), task.length_setting
    tasks = {getattr(task, setting): task} if lengths is None else {n: task.at_length(n) for n in lengths}
    scores: dict[int, dict[str, Estimate]] = {}
    for length, at_length in tasks.items():
        own: list[dict[str, Any]] = []
        scores[length] = score_task(model, at_length, rows=own if rows is not None else None, **options)
        if rows is not None:
            rows += [{setting: length, **row} for row in own]
    settings = {key: value for key, value in asdict(task).items() if key != setting}
    configuration = {"model": model.config.to_diff_dict(), "task": settings, "options": options}
    return {
        "task": name,
        "main_score": task.main_score,
        "examples": options["examples"],
        "length_setting": setting,
        "scores": {
            str(length): {key: estimate._asdict() for key, estimate in row.items()} for length, row in scores.items()
        },
        "provenance": provenance(configuration=configuration, seed=options["seed"], wall_seconds=time.time() - began),
    }


@torch.no_grad()
def _logits(model: PreTrainedModel, tokens: Tensor, precision: str) -> Tensor:
    expect_positions(model.config, tokens.shape[1], "eval", "the tokens of an example", "Use smaller --lengths.")
    with autocast(precision, model.device.type):
        return model(tokens.to(model.device), use_cache=False).logits.float().cpu()
