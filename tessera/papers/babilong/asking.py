"""What `tessera ask` does with the samples of BABILong: it answers and scores them."""

import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, NamedTuple

import torch
from tqdm import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from tessera.base.errors import expect
from tessera.generation.sampling import Sampling
from tessera.memory_files.answering import answer, answers_questions
from tessera.memory_files.memory import Memory
from tessera.models.recurrence import SegmentedForCausalLM
from tessera.papers.babilong import benchmark
from tessera.papers.babilong.stories import LENGTHS, generate

SHOT_FACTS = 8  # at most, of the stories that stand before a sample


class Answered(NamedTuple):
    """What a model says; whether it is right by exact match (ARMT, section 4), and by the benchmark's rule."""

    said: str
    exact: bool
    published: bool


def shots_of(kind: str, count: int) -> str:
    """`count` short stories of a task, each with a question and its answer, to stand before a sample."""
    stories = [generate(kind, Random(f"shot {index}"), SHOT_FACTS) for index in range(count)]
    pairs = [(" ".join(story.facts), story.questions[0]) for story in stories]
    return "".join(f"{facts}{benchmark.ASKED.format(question=first.text)} {first.answer}\n\n" for facts, first in pairs)


@torch.no_grad()
def answered(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    sample: benchmark.TextSample,
    answers: Collection[str],
    sampling: Sampling,
    shots: str | None = None,
) -> Answered:
    """Read the sample's text, ask its question, and compare.

    A model with a memory of segments, or that was trained on questions, reads the text first and is asked behind it.
    Any other reads both at once.

    Args:
        answers: all that the benchmark's rule looks for in what the model says (`benchmark_labels`).
        sampling: of models that were not trained on questions: they continue the text after the question.
        shots: text before the sample's; then the question stands in `ASKED`, and what the model says ends with the line
            that it begins.
    Raises `TesseraError`: a text or question without tokens or too long for the model, or logits that are not finite.
    """
    text, question = sample.input, sample.question
    is_trained = answers_questions(tokenizer)
    if shots is not None:
        text = shots + text
        question = question if is_trained else benchmark.ASKED.format(question=question.strip())
    memory = None
    if is_trained or isinstance(model, SegmentedForCausalLM):
        memory = Memory(model, tokenizer).read([text], "input", "ask: input", precision="auto").state
    else:
        question = text + ("\n" if shots is None else "") + question
    said = answer(model, tokenizer, question, memory, sampling).text
    if shots is not None:
        said = said.strip().partition("\n")[0]
    match = benchmark.published_match(said, sample.question, sample.target, answers)
    return Answered(said, benchmark.exact_match(said, sample.target), match)


def score_samples(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    path: Path,
    sampling: Sampling,
    shots: int | None = None,
    results: Path | None = None,
) -> tuple[list[dict[str, Any]], str]:
    """A row for each sample of a file (prompt, question, target, answer, and whether it is right), and a summary.

    Args:
        shots: stories before each sample (`shots_of`). results: a folder for the answers as the benchmark's own
            evaluation keeps them (`write_results`).
    Raises `TesseraError`: a path that does not name the task or length that `shots` and `results` need.
    """
    samples = benchmark.read_samples(path)
    kind, labels = benchmark.benchmark_labels(path, [sample.target for sample in samples])
    expect(not shots or kind in LENGTHS, "ask", "--shots", "come with samples of qa1 to qa5", str(path))
    before = None if shots is None else shots_of(kind, shots)
    file = None if results is None else benchmark.results_file(results, path, kind, bool(before))
    bar = tqdm(samples, desc="samples", disable=not sys.stderr.isatty())
    scores = [answered(model, tokenizer, sample, labels, sampling, before) for sample in bar]
    if file is not None:
        used = sampling
        if answers_questions(tokenizer):  # its likeliest answer, as long as it was trained to
            used = replace(sampling, max_new_tokens=model.generation_config.max_new_tokens or 1, temperature=0.0)
        benchmark.write_results(file, samples, [score.said for score in scores], before, used.arguments)
    exact, published = (100 * fmean(right) for right in zip(*((score.exact, score.published) for score in scores)))
    of_file = f"answers of the file, which is of {kind or 'none of its tasks'}"
    known_answers = f"answers of {kind}" if kind in LENGTHS else of_file
    summary = (
        f"{len(samples)} samples of {path.name}, right in per cent:\n"
        f"exact match      {exact:5.1f}\nbenchmark's rule {published:5.1f}  ({known_answers})"
    )
    rows = [
        {"prompt": sample.input, "question": sample.question, "target": sample.target, "answer": score.said}
        | {"exact_match": score.exact, "published_match": score.published}
        for sample, score in zip(samples, scores)
    ]
    return rows, summary
