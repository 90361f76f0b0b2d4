"""Many-shot classification: accuracy by shots, the lead over the twin, all prompt strategies, the settings.

The paper's figures 3 to 6, 10 and 11 are curves without numbers.
"""

from collections.abc import Mapping
from pathlib import Path

from tessera.papers.curves import doubling, draw_curve, panels, styles
from tessera.papers.experiment import LIBRARY, Experiment, Record
from tessera.papers.many_shot.prompts import STRATEGIES
from tessera.papers.many_shot.run import NAMES, ManyShotSettings, execute, plan
from tessera.papers.tables import Curve, by_model, curves_table, markdown, points_of, settings_table, spread

WITHOUT_LONG_TERM = "Memory Mosaic v2, long-term memories off"
SCORES = {"exact_match": "exact match", "likeliest_label": "likeliest label"}


def strategies(records: Mapping[str, Record], score: str) -> list[Curve]:
    """Every row with each prompt strategy: a score by shots over seeds."""
    return [
        Curve(name, points_of([{n: by[strategy][score] for n, by in scores.items()} for scores in seeds]), (strategy,))
        for name, seeds in _scores(records).items()
        for strategy in STRATEGIES
    ]


def best(records: Mapping[str, Record], score: str) -> list[Curve]:
    """Every row with the strategy of the highest mean over seeds at each number of shots, chosen on the test itself."""
    rows = []
    every_strategy = strategies(records, score)
    for name, seeds in _scores(records).items():
        of_row = [curve.points for curve in every_strategy if curve.label == name]
        points = {shots: max((p[shots] for p in of_row), key=lambda point: point.mean) for shots in of_row[0]}
        rows.append(Curve(name, points, (len(seeds),)))
    return rows


def _scores(records: Mapping[str, Record]) -> dict[str, list[dict]]:
    """Row -> the scores of each seed, rows in the order of the tables."""
    rows = {NAMES[model]: [r.outcome["scores"] for r in seeds] for model, seeds in by_model(records, NAMES).items()}
    off = [r.outcome["without_long_term_memory"] for r in _in_order(records) if "without_long_term_memory" in r.outcome]
    return {**rows, WITHOUT_LONG_TERM: off} if off else rows


def _in_order(records: Mapping[str, Record]) -> list[Record]:
    return [r for seeds in by_model(records, NAMES).values() for r in seeds]


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
    parts["Settings"] = _settings([*records.values()])
    return {heading: table for heading, table in parts.items() if table}


def _leads(rows: list[Curve]) -> str:
    """v2 minus each other row in percentage points, at the best strategy of each."""
    points = {curve.label: curve.points for curve in rows}
    ours = points.pop(NAMES["mosaic_v2"], {})
    leads = [[name, *(f"{100 * (ours[n].mean - other[n].mean):+.1f}" for n in ours)] for name, other in points.items()]
    return markdown(["over", *(f"{shots} shots" for shots in ours)], leads if ours else ())


def _means(record: Record, score: str) -> dict[int, float]:
    """By shots, the score in percent of one training with its own best strategy."""
    by_shots = record.outcome["scores"].items()
    return {int(n): 100 * max(scores[score][0] for scores in by.values()) for n, by in by_shots}


def _every_seed(records: Mapping[str, Record]) -> str:
    """Each training: its loss at the end, and exact match."""
    rows, shots = [], next(iter(records.values())).outcome["scores"]
    for record in _in_order(records):
        settings, loss = record.configuration, record.outcome["training"]["loss"]
        means = _means(record, "exact_match").values()
        rows.append([NAMES[settings.model], settings.seed, f"{loss:.2f}", *(f"{mean:.1f}" for mean in means)])
    return markdown(["model", "seed", "training loss", *(f"{count} shots" for count in shots)], rows)


def _settings(records: list[Record]) -> str:
    """Here, and in sections 4 and 5.3 and appendices D and G."""
    first = records[0].configuration
    task = first.trained_tasks()[0]
    num_steps = sum(stage.fit.steps for stage in first.stages())
    classes = f"{task.fewest_classes or task.num_classes} to {task.num_classes}"
    parameters = spread(record.outcome["parameters"] for record in records)
    return settings_table(
        {
            "parameters": (parameters, "9.9 billion (v2 large), 8.8 billion (transformer)"),
            "layers": (first.num_layers, 32),
            "width": (first.hidden_size, 4096),
            "heads": (first.num_heads, 32),
            "trained on": (f"{num_steps * first.batch_size:,} contexts of 52 classes", "1,000 billion tokens of text"),
            "short-term span": (first.span, 256),
            "long-term delay in training": (f"{first.span // 4} to {first.span}", "64 to 256"),
            "long-term delay in tests": (first.span // 4, 64),
            "classes of a context": (
                f"{classes}, tests {first.test_classes} of 17 others",
                "77, 41, 28 (Banking77, Tacred, GoEmotions)",
            ),
            "shots in training": (task.shots, None),
            "steps": (first.fit.steps, None),
            "early steps with texts that repeat": (num_steps - first.fit.steps, None),
            "contexts per step": (first.batch_size, None),
            "peak learning rate": (first.fit.learning_rate, None),
            "longest text, characters": (task.max_characters, None),
            "delimiters": ("newline, space", "newline, space"),
            "orders": ("fixed, shuffled", "fixed, shuffled"),
            "tested queries of each cell and seed": (first.contexts * first.queries, None),
        }
    )


def plot(records: Mapping[str, Record], path: Path) -> None:
    """Draw one panel per score, at the best strategy: means over seeds thick, every seed thin."""
    by_name = styles([*NAMES.values(), WITHOUT_LONG_TERM])
    chance = 100 / next(iter(records.values())).configuration.test_classes
    with panels(path, 11, 4.6, columns=2, title="means over seeds (thin: every seed)") as axes:
        for axis, (score, title) in zip(axes, SCORES.items(), strict=True):
            rows = best(records, score)
            for curve in rows:
                draw_curve(axis, curve.points, curve.label, scale=100, bars=0, linewidth=2.5, **by_name[curve.label])
            for record in _in_order(records):
                means = _means(record, score)
                color = by_name[NAMES[record.configuration.model]]["color"]
                axis.plot(list(means), list(means.values()), color=color, linewidth=0.8, alpha=0.7)
            axis.axhline(chance, color="black", linewidth=0.8, linestyle="--", label="guess")
            doubling(axis, [shots for curve in rows for shots in curve.points])
            axis.set(ylim=(0, 101), xlabel="shots (examples of each class)", ylabel="%", title=f"New classes: {title}")


# Memory Mosaics v2, figures 4, 6 and 11 at small size: anonymous labels, models trained on episodes.
EXPERIMENT = Experiment(LIBRARY["many_shot"], ManyShotSettings, plan, execute, tables, plot, tuple(NAMES))
