"""Document questions: accuracy by length after training and after tuning, beside the paper's, and the settings.

The paper's numbers are of RULER's questions about documents: accuracy in percent.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from tessera.papers.curves import doubling, draw_curve, panels, styles
from tessera.papers.document_qa.run import NAMES, DocumentSettings, execute, plan
from tessera.papers.experiment import LIBRARY, Experiment, Record
from tessera.papers.tables import Curve, by_model, curves_table, markdown, points_of, settings_table, spread

STAGES = {"training": "After training", "tuning": "After tuning"}
OFF = "Memory Mosaic v2, long-term memories off"

# Tables 3, 4 and 7 of Memory Mosaics v2: trained at 4k; then tuned at 32k; then with the long-term memories off. None:
# the model fails.
LENGTHS = ("4k", "8k", "16k", "32k", "64k")
TUNED_V2, TUNED_V2_OFF = (58.9, 55.5, 54.9, 53.4, 46.4), (38.5, 22.2, 20.0, 20.2)
PAPER: dict[str, dict[str, tuple[float | None, ...]]] = {
    "training": {
        "Memory Mosaic v2 small": (45.0, 35.0, 34.1, 31.7),
        "Transformer small": (39.4, None, None, None),
        "Memory Mosaic v2 large": (59.3, 48.8, 46.4, 26.5),
        "Transformer large": (57.7, None, None, None),
    },
    "tuning": {
        "Memory Mosaic v2 small": (44.3, 39.3, 39.4, 36.9, 25.3),
        "Transformer small": (37.0, 29.3, 29.0, 22.1, None),
        "Memory Mosaic v2 large": TUNED_V2,
        "Transformer large": (51.2, 48.8, 44.7, 41.1, None),
        f"{OFF} (large)": TUNED_V2_OFF,
    },
}


def curves(records: Mapping[str, Record], stage: str) -> list[Curve]:
    """Right answers of every row after a stage, by length over seeds, in the order of the tables."""
    rows = []
    for model, seeds in by_model(records, NAMES).items():
        for name, scores in ((NAMES[model], "scores"), (OFF, "without_long_term_memory")):
            of_seeds = [record.outcome[stage][scores] for record in seeds if scores in record.outcome[stage]]
            rows += [Curve(name, points_of(of_seeds), (len(of_seeds),))] if of_seeds else []
    return rows


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """Accuracy after each stage, the paper's numbers, the settings."""
    parts = {}
    for stage, title in STAGES.items():
        parts[title] = curves_table(["model", "seeds"], curves(records, stage), length="{:,} tokens")
        lengths = LENGTHS[: max(map(len, PAPER[stage].values()))]
        rows = [[name, *map(_cell, row), *["-"] * (len(lengths) - len(row))] for name, row in PAPER[stage].items()]
        parts[f"{title}, paper"] = markdown(["model", *lengths], rows)
    parts["Every training"] = _every_training(records)
    parts["Settings"] = _settings(records.values())
    return parts


def _cell(value: float | None) -> str:
    return "fails" if value is None else f"{value:.1f}"


def _every_training(records: Mapping[str, Record]) -> str:
    """Each training's loss at its end and right answers after it, in percent: a model learns the task or guesses."""
    rows, lengths = [], list(next(iter(records.values())).outcome["training"]["scores"])
    for model, seeds in by_model(records, NAMES).items():
        for record in seeds:
            training = record.outcome["training"]
            shares = [f"{100 * training['scores'][length][0]:.1f}" for length in lengths]
            rows.append([NAMES[model], record.configuration.seed, f"{training['loss']:.2f}", *shares])
    return markdown(["model", "seed", "loss", *(f"{int(length):,} tokens" for length in lengths)], rows)


def _settings(records: Collection[Record]) -> str:
    """Here, and in section 5.2."""
    configurations = [record.configuration for record in records]
    first = configurations[0]
    task, tuned = first.task_at(first.length), first.task_at(first.tuned_length)
    steps, rates = (spread(getattr(s.fit, name) for s in configurations) for name in ("steps", "learning_rate"))
    early = [
        sum(stage["steps"] for name, stage in record.outcome.items() if name.startswith("stage-"))
        for record in records
        if record.configuration.early_stages
    ]
    parameters = spread(record.outcome["parameters"] for record in records)
    return settings_table(
        {
            "parameters": (parameters, "9.9 billion (v2 large), 8.8 billion (transformer)"),
            "layers": (first.num_layers, None),
            "width": (first.hidden_size, None),
            "heads": (first.num_heads, None),
            "trained length": (f"up to {first.length}", "4,096"),
            "tuned length": (first.tuned_length, "32,768"),
            "documents of a sample": (f"{task.num_documents} in training, {tuned.num_documents} in tuning", None),
            "questions of a sample": (task.questions, None),
            "short-term span": (first.span, 256),
            "long-term delay in training": (f"{first.span // 4} to {first.span}", "64 to 256"),
            "long-term delay in tests": (first.span // 4, 64),
            "steps": (f"{steps} in training, {first.tuning.steps:,} in tuning", None),
            **({"early steps of the twin": (spread(early), None)} if early else {}),
            "samples per step": (f"{first.batch_size} in training, {first.tuned_batch_size} in tuning", None),
            "peak learning rate": (f"{rates} in training, {first.tuning.learning_rate:g} in tuning", None),
            "documents": (f"stories about {task.people} people of their own", "SQuAD and HotpotQA paragraphs"),
        }
    )


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


# Memory Mosaics v2, tables 3, 4 and 7 at small size.
EXPERIMENT = Experiment(LIBRARY["document_qa"], DocumentSettings, plan, execute, tables, plot, tuple(NAMES))
