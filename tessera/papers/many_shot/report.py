"""Many-shot classification: accuracy by shots, the lead over the twin, all prompt strategies, the settings."""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from tessera.papers.experiment import Record
from tessera.papers.many_shot.published import NAMES, SETTING, WITHOUT_LONG_TERM
from tessera.papers.many_shot.settings import STRATEGIES
from tessera.papers.tables import markdown, over_seeds, settings_table, spread, with_error
from tessera.tasks.task import Estimate

SCORES = {"exact_match": "exact match", "likeliest_label": "likeliest label"}


class Curve(NamedTuple):
    """One row's accuracies: shots -> over seeds; `strategy` None is the best strategy of each number of shots."""

    name: str
    score: str
    strategy: str | None
    points: dict[int, Estimate]
    seeds: int


def curves(records: Mapping[str, Record]) -> list[Curve]:
    """Every row, score and strategy.

    The best strategy of a number of shots is the one with the highest mean over seeds, as the paper chooses it: on the
    test itself.
    """
    result = []
    for name, outcomes in _outcomes(records).items():
        for score in SCORES:
            by_strategy = {
                strategy: {
                    int(shots): over_seeds([outcome[shots][strategy][score] for outcome in outcomes])
                    for shots in outcomes[0]
                }
                for strategy in STRATEGIES
            }
            best = {
                shots: max((points[shots] for points in by_strategy.values()), key=lambda one: one.mean)
                for shots in by_strategy[STRATEGIES[0]]
            }
            result.append(Curve(name, score, None, best, len(outcomes)))
            result += [Curve(name, score, strategy, points, len(outcomes)) for strategy, points in by_strategy.items()]
    return result


def _outcomes(records: Mapping[str, Record]) -> dict[str, list[dict]]:
    """Row -> the scores of each seed, rows in the order of the tables."""
    rows: dict[str, list[dict]] = defaultdict(list)
    for record in sorted(records.values(), key=lambda one: one.configuration.seed):
        rows[NAMES[record.configuration.model]].append(record.outcome["scores"])
        if "without_long_term_memory" in record.outcome:
            rows[WITHOUT_LONG_TERM].append(record.outcome["without_long_term_memory"])
    order = [*NAMES.values(), WITHOUT_LONG_TERM]
    return {name: rows[name] for name in order if name in rows}


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """Accuracy by shots, the lead of v2, every seed and strategy, what was trained."""
    rows = curves(records)
    parts = {}
    for score, title in SCORES.items():
        best = [curve for curve in rows if curve.score == score and curve.strategy is None]
        parts[f"Accuracy, {title}"] = _accuracies(best)
    leads = _leads(rows)
    if leads:
        parts["Lead of v2"] = leads
    parts["Every seed"] = _every_seed(records)
    parts["Every prompt strategy"] = _strategies([one for one in rows if one.strategy and one.score == "exact_match"])
    parts["Settings"] = _settings(records)
    return parts


def _accuracies(chosen: list[Curve]) -> str:
    shots = list(chosen[0].points)
    headings = ["model", "seeds", *(f"{count} shots" for count in shots)]
    return markdown(headings, [[one.name, one.seeds, *map(_percent, one.points.values())] for one in chosen])


def _leads(rows: list[Curve]) -> str:
    """v2 minus each other row in percentage points, at the best strategy of each."""
    best = {one.name: one.points for one in rows if one.strategy is None and one.score == "exact_match"}
    ours = best.pop(NAMES["mosaic_v2"], None)
    if ours is None or not best:
        return ""
    cells = [
        [name, *(f"{100 * (ours[shots].mean - points[shots].mean):+.1f}" for shots in ours)]
        for name, points in best.items()
    ]
    return markdown(["over", *(f"{count} shots" for count in ours)], cells)


def _strategies(chosen: list[Curve]) -> str:
    shots = list(chosen[0].points)
    headings = ["model", "delimiter, order", *(f"{count} shots" for count in shots)]
    return markdown(headings, [[one.name, one.strategy, *map(_percent, one.points.values())] for one in chosen])


def every_seed(records: Mapping[str, Record], score: str) -> list[tuple[Record, dict[int, float]]]:
    """Each training and, by shots, its score with its own best strategy, in the order of the tables."""

    def place(record: Record) -> tuple[int, int]:
        return list(NAMES).index(record.configuration.model), record.configuration.seed

    return [
        (
            record,
            {
                int(shots): max(one[score][0] for one in by_strategy.values())
                for shots, by_strategy in record.outcome["scores"].items()
            },
        )
        for record in sorted(records.values(), key=place)
    ]


def _every_seed(records: Mapping[str, Record]) -> str:
    """Each training: its loss at the end, and exact match."""
    trainings = every_seed(records, "exact_match")
    rows = []
    for record, best in trainings:
        settings, loss = record.configuration, record.outcome["training"]["loss"]
        cells = [f"{100 * mean:.1f}" for mean in best.values()]
        rows.append([NAMES[settings.model], settings.seed, f"{loss:.2f}", *cells])
    return markdown(["model", "seed", "training loss", *(f"{shots} shots" for shots in trainings[0][1])], rows)


def _percent(one: Estimate) -> str:
    return with_error(Estimate(100 * one.mean, 100 * one.standard_error, one.count), ".1f")


def _settings(records: Mapping[str, Record]) -> str:
    first = next(iter(records.values())).configuration
    task = first.trained_tasks()[0]
    num_steps = sum(stage.fit.steps for stage in first.stages())
    ours = {
        "parameters": spread(record.outcome["parameters"] for record in records.values()),
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
    return settings_table(ours, SETTING)
