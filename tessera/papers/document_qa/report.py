"""Document questions: accuracy by length after training and after tuning, beside the paper's, and the settings."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tessera.papers.curves import doubling, draw_curve, panels, styles
from tessera.papers.document_qa.published import NAMES, SETTING, TRAINED, TUNED, TUNED_WITHOUT_LONG_TERM
from tessera.papers.document_qa.published import WITHOUT_LONG_TERM as OFF
from tessera.papers.experiment import Record
from tessera.papers.tables import Curve, curves_table, grouped, markdown, points_of, settings_table, spread

STAGES = {"training": "After training", "tuning": "After tuning"}


def curves(records: Mapping[str, Record], stage: str) -> list[Curve]:
    """Right answers of every row after a stage, by length over seeds, in the order of the tables."""
    rows = []
    for model, seeds in _by_model(records).items():
        outcomes = [record.outcome[stage] for record in seeds]
        for name, scores in ((NAMES[model], "scores"), (OFF, "without_long_term_memory")):
            of_seeds = [outcome[scores] for outcome in outcomes if scores in outcome]
            rows += [Curve(name, points_of(of_seeds), (len(of_seeds),))] if of_seeds else []
    return rows


def _by_model(records: Mapping[str, Record]) -> dict[str, list[Record]]:
    return grouped(records, lambda settings: settings.model, NAMES)


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """Accuracy after each stage, the paper's numbers, the settings."""
    parts = {}
    for stage, title in STAGES.items():
        parts[title] = curves_table(["model", "seeds"], curves(records, stage), length="{:,} tokens")
        parts[f"{title}, paper"] = _paper(stage)
    parts["Every training"] = _every_training(records)
    parts["Settings"] = settings_table(_settings(list(records.values())), SETTING)
    return parts


def _every_training(records: Mapping[str, Record]) -> str:
    """Each training's loss at its end and right answers after it, in percent: a model learns the task or guesses."""
    rows, lengths = [], list(next(iter(records.values())).outcome["training"]["scores"])
    for model, seeds in _by_model(records).items():
        for record in seeds:
            training = record.outcome["training"]
            shares = [f"{100 * training['scores'][length][0]:.1f}" for length in lengths]
            rows.append([NAMES[model], record.configuration.seed, f"{training['loss']:.2f}", *shares])
    return markdown(["model", "seed", "loss", *(f"{int(length):,} tokens" for length in lengths)], rows)


def _paper(stage: str) -> str:
    numbers, lengths = (TRAINED, []) if stage == "training" else (TUNED, ["64k"])
    rows = [
        [f"{'Memory Mosaic v2' if model == 'mosaic_v2' else 'Transformer'} {size}", *map(_cell, row)]
        for size, models in numbers.items()
        for model, row in models.items()
    ]
    if stage == "tuning":
        rows.append([f"{OFF} (large)", *map(_cell, TUNED_WITHOUT_LONG_TERM), "-"])
    return markdown(["model", "4k", "8k", "16k", "32k", *lengths], rows)


def _cell(value: float | None) -> str:
    return "fails" if value is None else f"{value:.1f}"


def _settings(records: list[Record]) -> dict[str, Any]:
    configurations = [record.configuration for record in records]
    first = configurations[0]
    task, tuned = first.task_at(first.length), first.task_at(first.tuned_length)
    steps, rates = (spread(getattr(s.fit, name) for s in configurations) for name in ("steps", "learning_rate"))
    early = [
        sum(stage["steps"] for name, stage in record.outcome.items() if name.startswith("stage-"))
        for record in records
        if record.configuration.early_stages
    ]
    return {
        "parameters": spread(record.outcome["parameters"] for record in records),
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
        "steps": f"{steps} in training, {first.tuning.steps:,} in tuning",
        **({"early steps of the twin": spread(early)} if early else {}),
        "samples per step": f"{first.batch_size} in training, {first.tuned_batch_size} in tuning",
        "peak learning rate": f"{rates} in training, {first.tuning.learning_rate:g} in tuning",
        "documents": f"stories about {task.people} people of their own",
    }


def plot(records: Mapping[str, Record], path: Path) -> None:
    """Draw one panel per stage; v2 without its long-term memories is dotted."""
    first, by_name = next(iter(records.values())).configuration, styles(NAMES.values())
    by_name[OFF] = {**by_name[NAMES["mosaic_v2"]], "linestyle": ":"}
    with panels(path, 11, 4.8, columns=2) as axes:
        for axis, (stage, title) in zip(axes, STAGES.items(), strict=True):
            trained = first.length if stage == "training" else first.tuned_length
            rows = curves(records, stage)
            for curve in rows:
                draw_curve(axis, curve.points, curve.label, scale=100, **by_name[curve.label])
            doubling(axis, [length for curve in rows for length in curve.points])
            axis.axhline(100 / 6, color="black", linewidth=0.8, linestyle="--", label="guess")
            axis.axvline(trained, color="black", linewidth=0.8, linestyle=":")
            axis.set(ylim=(0, 102), xlabel="tokens of a sample", ylabel="right answers, %")
            axis.set_title(f"{title} at {trained:,} tokens")
