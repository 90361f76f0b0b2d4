"""Document questions: accuracy by length after training and after tuning, beside the paper's, and the settings."""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from tessera.papers.document_qa import published
from tessera.papers.experiment import Record
from tessera.papers.tables import markdown, over_seeds, settings_table, spread, with_error
from tessera.tasks.task import Estimate

STAGES = {"training": "After training", "tuning": "After tuning"}


class Curve(NamedTuple):
    """One row's accuracies after one stage: length -> over seeds."""

    name: str
    stage: str
    model: str
    has_long_term: bool
    points: dict[int, Estimate]
    seeds: int
    trained_length: int


def curves(records: Mapping[str, Record]) -> list[Curve]:
    """Every row after each stage, in the order of the tables."""
    scores: dict[tuple[str, str, bool], list[dict]] = defaultdict(list)
    lengths = {}
    for record in sorted(records.values(), key=lambda one: one.configuration.seed):
        settings, outcome = record.configuration, record.outcome
        for stage in STAGES:
            lengths[stage] = settings.length if stage == "training" else settings.tuned_length
            scores[settings.model, stage, True].append(outcome[stage]["scores"])
            if "without_long_term_memory" in outcome[stage]:
                scores[settings.model, stage, False].append(outcome[stage]["without_long_term_memory"])
    rows = [(stage, model, long) for stage in STAGES for model in published.NAMES for long in (True, False)]
    return [
        Curve(
            published.NAMES[model] if long else published.WITHOUT_LONG_TERM, stage, model, long,
            {int(length): over_seeds([one[length] for one in scores[model, stage, long]])
             for length in scores[model, stage, long][0]},
            len(scores[model, stage, long]), lengths[stage],
        )
        for stage, model, long in rows if (model, stage, long) in scores
    ]  # fmt: skip


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """Accuracy after each stage, the paper's numbers, the settings."""
    rows = curves(records)
    parts = {}
    for stage, title in STAGES.items():
        chosen = [curve for curve in rows if curve.stage == stage]
        parts[title] = _accuracies(chosen)
        parts[f"{title}, paper"] = _paper(stage)
    parts["Every training"] = _every_training(records)
    parts["Settings"] = _settings(records)
    return parts


def _every_training(records: Mapping[str, Record]) -> str:
    """Each training's loss at its end and right answers after it, in percent: a model learns the task or guesses."""

    def place(record: Record) -> tuple[int, int]:
        return list(published.NAMES).index(record.configuration.model), record.configuration.seed

    rows, lengths = [], list(next(iter(records.values())).outcome["training"]["scores"])
    for record in sorted(records.values(), key=place):
        settings, training = record.configuration, record.outcome["training"]
        shares = [f"{100 * training['scores'][length][0]:.1f}" for length in lengths]
        rows.append([published.NAMES[settings.model], settings.seed, f"{training['loss']:.2f}", *shares])
    return markdown(["model", "seed", "loss", *(f"{int(length):,} tokens" for length in lengths)], rows)


def percent(one: Estimate) -> str:
    """A cell: mean and standard error in percent."""
    return with_error(Estimate(100 * one.mean, 100 * one.standard_error, one.count), ".1f")


def _accuracies(chosen: list[Curve]) -> str:
    lengths = list(chosen[0].points)
    headings = ["model", "seeds", *(f"{length:,} tokens" for length in lengths)]
    return markdown(headings, [[one.name, one.seeds, *map(percent, one.points.values())] for one in chosen])


def _paper(stage: str) -> str:
    numbers = published.TRAINED if stage == "training" else published.TUNED
    lengths = ["4k", "8k", "16k", "32k", *(["64k"] if stage == "tuning" else [])]
    rows = [
        [f"{'Memory Mosaic v2' if model == 'mosaic_v2' else 'Transformer'} {size}", *map(_cell, row)]
        for size, models in numbers.items()
        for model, row in models.items()
    ]
    if stage == "tuning":
        rows.append([f"{published.WITHOUT_LONG_TERM} (large)", *map(_cell, published.TUNED_WITHOUT_LONG_TERM), "-"])
    return markdown(["model", *lengths], rows)


def _cell(value: float | None) -> str:
    return "fails" if value is None else f"{value:.1f}"


def _settings(records: Mapping[str, Record]) -> str:
    first = next(iter(records.values())).configuration
    task, tuned = first.task_at(first.length), first.task_at(first.tuned_length)
    ours = {
        "parameters": spread(record.outcome["parameters"] for record in records.values()),
        "layers": first.num_layers,
        "width": first.hidden_size,
        "heads": first.num_heads,
        "trained length": f"up to {first.length}",
        "tuned length": first.tuned_length,
        "documents of a sample": f"{task.num_documents} in training, {tuned.num_documents} in tuning",
        "questions of a sample": task.questions,
        "short-term span": first.span,
        "long-term delay in training": f"{first.span // 4} to {first.span}",
        "long-term delay in tests": first.span // 4,
        "steps": f"{spread(record.configuration.fit.steps for record in records.values())} in training, "
        f"{first.tuning.steps:,} in tuning",
        **_early_steps(records),
        "samples per step": f"{first.batch_size} in training, {first.tuned_batch_size} in tuning",
        "peak learning rate": f"{spread(record.configuration.fit.learning_rate for record in records.values())} "
        f"in training, {first.tuning.learning_rate:g} in tuning",
        "documents": f"stories about {task.people} people of their own",
    }
    return settings_table(ours, published.SETTING)


def _early_steps(records: Mapping[str, Record]) -> dict[str, str]:
    """A row about the stages before the training, where a record has some: how many steps they took together."""
    counts = [
        sum(stage["steps"] for name, stage in record.outcome.items() if name.startswith("stage-"))
        for record in records.values()
        if record.configuration.early_stages
    ]
    return {"early steps of the twin": spread(counts)} if counts else {}
