"""Many-shot classification: accuracy by shots, the lead over the twin, all prompt strategies, the settings."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tessera.papers.curves import doubling, draw_curve, panels, styles
from tessera.papers.experiment import Record
from tessera.papers.many_shot.prompts import STRATEGIES
from tessera.papers.many_shot.published import NAMES, SETTING, WITHOUT_LONG_TERM
from tessera.papers.tables import Curve, curves_table, grouped, markdown, points_of, settings_table, spread

SCORES = {"exact_match": "exact match", "likeliest_label": "likeliest label"}


def strategies(records: Mapping[str, Record], score: str) -> list[Curve]:
    """Every row with each prompt strategy: a score by shots over seeds."""
    return [
        Curve(name, points_of([{n: by[strategy][score] for n, by in scores.items()} for scores in seeds]), (strategy,))
        for name, seeds in _scores(records).items()
        for strategy in STRATEGIES
    ]


def best(records: Mapping[str, Record], score: str) -> list[Curve]:
    """Every row with the best strategy of each number of shots.

    That is the one with the highest mean over seeds, as the paper chooses it: on the test itself.
    """
    rows = []
    every_strategy = strategies(records, score)
    for name, seeds in _scores(records).items():
        of_row = [curve.points for curve in every_strategy if curve.label == name]
        points = {shots: max((p[shots] for p in of_row), key=lambda point: point.mean) for shots in of_row[0]}
        rows.append(Curve(name, points, (len(seeds),)))
    return rows


def _scores(records: Mapping[str, Record]) -> dict[str, list[dict]]:
    """Row -> the scores of each seed, rows in the order of the tables."""
    rows: dict[str, list[dict]] = {}
    off = [r.outcome["without_long_term_memory"] for r in _in_order(records) if "without_long_term_memory" in r.outcome]
    for record in _in_order(records):
        rows.setdefault(NAMES[record.configuration.model], []).append(record.outcome["scores"])
    return {**rows, WITHOUT_LONG_TERM: off} if off else rows


def _in_order(records: Mapping[str, Record]) -> list[Record]:
    groups = grouped(records, lambda settings: settings.model, NAMES)
    return [record for seeds in groups.values() for record in seeds]


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """Accuracy by shots, the lead of v2, every seed and strategy, what was trained."""
    parts = {
        f"Accuracy, {title}": curves_table(["model", "seeds"], best(records, score), length="{} shots")
        for score, title in SCORES.items()
    }
    every_strategy = strategies(records, "exact_match")
    parts["Lead of v2"] = _leads(best(records, "exact_match"))
    parts["Every seed"] = _every_seed(records)
    parts["Every prompt strategy"] = curves_table(["model", "delimiter, order"], every_strategy, length="{} shots")
    parts["Settings"] = settings_table(_settings([*records.values()]), SETTING)
    return {heading: table for heading, table in parts.items() if table}


def _leads(rows: list[Curve]) -> str:
    """v2 minus each other row in percentage points, at the best strategy of each."""
    points = {curve.label: curve.points for curve in rows}
    ours = points.pop(NAMES["mosaic_v2"], {})
    leads = [[name, *(f"{100 * (ours[n].mean - other[n].mean):+.1f}" for n in ours)] for name, other in points.items()]
    return markdown(["over", *(f"{shots} shots" for shots in ours)], leads) if ours and leads else ""


def every_seed(records: Mapping[str, Record], score: str) -> Iterator[tuple[Record, dict[int, float]]]:
    """Each training and, by shots, its score in percent with its own best strategy, in the order of the tables."""
    for record in _in_order(records):
        by_shots = record.outcome["scores"].items()
        yield record, {int(n): 100 * max(scores[score][0] for scores in by.values()) for n, by in by_shots}


def _every_seed(records: Mapping[str, Record]) -> str:
    """Each training: its loss at the end, and exact match."""
    trainings = list(every_seed(records, "exact_match"))
    rows = []
    for record, means in trainings:
        settings, loss = record.configuration, record.outcome["training"]["loss"]
        rows.append([NAMES[settings.model], settings.seed, f"{loss:.2f}", *(f"{mean:.1f}" for mean in means.values())])
    return markdown(["model", "seed", "training loss", *(f"{shots} shots" for shots in trainings[0][1])], rows)


def _settings(records: list[Record]) -> dict[str, Any]:
    first = records[0].configuration
    task = first.trained_tasks()[0]
    num_steps = sum(stage.fit.steps for stage in first.stages())
    return {
        "parameters": spread(record.outcome["parameters"] for record in records),
        "layers": first.num_layers,
        "width": first.hidden_size,
        "heads": first.num_heads,
        "trained on": f"{num_steps * first.batch_size:,} contexts of 52 classes",
        "short-term span": first.span,
        "long-term delay in training": f"{first.span // 4} to {first.span}",
        "long-term delay in tests": first.span // 4,
        "classes of a context": f"{task.fewest_classes or task.num_classes} to {task.num_classes}, tests "
        f"{first.test_classes} of 17 others",
        "shots in training": task.shots,
        "steps": first.fit.steps,
        "early steps with texts that repeat": num_steps - first.fit.steps,
        "contexts per step": first.batch_size,
        "peak learning rate": first.fit.learning_rate,
        "longest text, characters": task.max_characters,
        "delimiters": "newline, space",
        "orders": "fixed, shuffled",
        "tested queries of each cell and seed": first.contexts * first.queries,
    }


def plot(records: Mapping[str, Record], path: Path) -> None:
    """Draw one panel per score, at the best strategy: means over seeds thick, every seed thin."""
    by_name = styles([*NAMES.values(), WITHOUT_LONG_TERM])
    chance = 100 / next(iter(records.values())).configuration.test_classes
    with panels(path, 11, 4.6, columns=2, title="means over seeds (thin: every seed)") as axes:
        for axis, (score, title) in zip(axes, SCORES.items(), strict=True):
            rows = best(records, score)
            for curve in rows:
                draw_curve(axis, curve.points, curve.label, scale=100, bars=0, linewidth=2.5, **by_name[curve.label])
            for record, means in every_seed(records, score):
                color = by_name[NAMES[record.configuration.model]]["color"]
                axis.plot(list(means), list(means.values()), color=color, linewidth=0.8, alpha=0.7)
            axis.axhline(chance, color="black", linewidth=0.8, linestyle="--", label="guess")
            doubling(axis, [shots for curve in rows for shots in curve.points])
            axis.set(ylim=(0, 101), xlabel="shots (examples of each class)", ylabel="%", title=f"New classes: {title}")
