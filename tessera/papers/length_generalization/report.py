"""Length generalisation: ours beside the paper's, task by task, and where exact match is lost."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tessera.papers.curves import doubling, draw_curve, panels, styles
from tessera.papers.experiment import Record
from tessera.papers.length_generalization import published
from tessera.papers.length_generalization.settings import SETTINGS, LengthSettings
from tessera.papers.tables import grouped, markdown, over_seeds, points_of, with_error
from tessera.tasks.task import Estimate

TITLES = {"mqmtar": "MQMTAR", "sort": "Sort", "reverse": "Reverse", "sort_long": "Sort, four times as long"}
RULES = {
    "mqmtar": "MQMTAR: recall the values of several keys",
    "sort": "Sort: write in ascending order",
    "reverse": "Reverse: write backwards",
    "sort_long": "Sort, trained four times longer",
}


class Point(NamedTuple):
    """Exact match at one length over seeds (of one seed: its error is over examples), and the best seed's."""

    estimate: Estimate
    best: float


Curve = Mapping[float, Point]


def _rows(records: Mapping[str, Record]) -> dict[tuple[str, str], list[Record]]:
    """The records of each task and row, by seed, in the order of the tables."""
    order = [(task, name) for task in TITLES for name in published.NAMES]
    return grouped(records, lambda settings: (settings.key, settings.name), order)


def curves(records: Mapping[str, Record]) -> dict[str, dict[str, Curve]]:
    """Task -> row -> length factor -> exact match, in the order of the tables."""
    by_task: dict[str, dict[str, Curve]] = {}
    for (task, name), seeds in _rows(records).items():
        exact = [{f: scores["exact_match"] for f, scores in record.outcome["scores"].items()} for record in seeds]
        best = {f: max(of_seed[f][0] for of_seed in exact if f in of_seed) for of_seed in exact for f in of_seed}
        points = {factor: Point(estimate, best[f"{factor:g}"]) for factor, estimate in points_of(exact).items()}
        by_task.setdefault(task, {})[name] = points
    return by_task


def tables(records: Mapping[str, Record]) -> dict[str, str]:
    """A table for each task, what sharper memories change, the second symbols of MQMTAR, and the settings."""
    by_task = {TITLES[task]: _exact_match(task, rows) for task, rows in curves(records).items()}
    others = {
        "Inverse bandwidth doubled": _sharper(records),
        "MQMTAR, second symbols": _second_symbols(records),
        "Settings": _settings(records),
    }
    return by_task | {heading: table for heading, table in others.items() if table}


def _exact_match(task: str, rows: Mapping[str, Curve]) -> str:
    factors = sorted({factor for curve in rows.values() for factor in curve})
    headings = ["kernel", "seeds", *(f"{factor:g}x" for factor in factors), "half at"]
    return markdown(headings, [_row(task, name, curve, factors) for name, curve in rows.items()])


def _row(task: str, name: str, curve: Curve, factors: list[float]) -> list[str]:
    means, best = (_published(numbers, task, name) for numbers in (published.MEAN, published.BEST))
    cells = []
    for factor in factors:
        point = curve.get(factor)
        cells.append("" if point is None else with_error(point.estimate))
        if point is not None and point.estimate.count > 1:
            cells[-1] += f" ({point.best:.2f})"
        if factor in means:
            cells[-1] += f" *{means[factor]:.2f} ({best[factor]:.2f})*"
    ours = half({factor: point.estimate.mean for factor, point in curve.items()})
    cells.append(f"{ours} *{half(means)}*" if len(means) > 1 else ours)
    return [published.NAMES[name], str(max(point.estimate.count for point in curve.values())), *cells]


def _published(numbers: Mapping[str, Any], task: str, name: str) -> dict[float, float]:
    """Length factor -> the paper's number, where it is known."""
    task = task.removesuffix("_long")
    row = numbers[name][task] if name in numbers else ()
    return {factor: value for factor, value in zip(published.FACTORS[task], row) if value is not None}


def half(means: Mapping[float, float]) -> str:
    """The length factor at which a curve first falls below 1/2, linear between the logarithms of its lengths."""
    before: tuple[float, float] | None = None
    for factor, mean in sorted(means.items()):
        if mean < 0.5:
            if before is None:
                return f"< {factor:g}x"
            share = (before[1] - 0.5) / (before[1] - mean)
            return f"{before[0] * (factor / before[0]) ** share:.3g}x"
        before = (factor, mean)
    return f"> {before[0]:g}x" if before else "-"


def _sharper(records: Mapping[str, Record]) -> str:
    """Scores at the longest length that still works, as trained and with sharper memories (see `run.sharper`)."""
    names, rows = ("exact_match", "token_accuracy", "first_symbol", "second_symbol"), []
    for (task, name), record in _every_record(records):
        for factor, sharp in record.outcome.get("sharper", {}).items():
            scores = record.outcome["scores"][factor]
            if scores["exact_match"][0] + sharp["exact_match"][0] > 0:  # else there is nothing to see
                cells = [f"{scores[n][0]:.2f} -> {sharp[n][0]:.2f}" if n in sharp else "" for n in names]
                rows.append([TITLES[task], published.NAMES[name], f"{factor}x", *cells])
    headings = ["task", "kernel", "length", "exact match", "all symbols", "first symbol", "second symbol"]
    return markdown(headings, rows) if rows else ""


def _second_symbols(records: Mapping[str, Record]) -> str:
    """At the middle length: right second symbols, where the first says which value it is and where it does not."""
    names, rows = ("first_symbol", "second_alone", "second_shared"), []
    for (_, name), record in _every_record(records):
        factor, scores = list(record.outcome["scores"].items())[len(record.outcome["scores"]) // 2]
        if all(score in scores for score in names):
            cells = [with_error(over_seeds([scores[score]])) for score in names]
            rows.append([published.NAMES[name], f"{factor}x", *cells])
    headings = ["kernel", "length", "first symbol", "second, first occurs once", "second, first shared"]
    return markdown(headings, rows) if rows else ""


def _every_record(records: Mapping[str, Record]) -> list[tuple[tuple[str, str], Record]]:
    return [(row, record) for row, seeds in _rows(records).items() for record in seeds]


def _settings(records: Mapping[str, Record]) -> str:
    headings = ["task", "", "layers", "width", "heads", "slots", "steps", "batch", "peak rate", "source tokens"]
    full, rows = {settings.task: settings for settings in SETTINGS["full"]}, []
    for (task, _), seeds in {group[0][0]: group for group in _rows(records).items()}.values():
        ours = seeds[0].configuration
        rows += [[TITLES[task], "here", *_cells(ours)], ["", "paper", *_cells(full[ours.task])]]
    return markdown([*headings, "symbols", "queries", "1x is"], rows)


def _cells(settings: LengthSettings) -> list[object]:
    fields, fit = settings.task_fields, settings.fit
    source = f"{fields['length'] - fields['spread']} to {fields['length'] + fields['spread']}"
    sizes = [settings.num_layers, settings.hidden_size, settings.num_heads, settings.num_persistent_slots]
    training = [f"{fit.steps:,}", settings.batch_size, f"{fit.learning_rate:g}", source]
    return [*sizes, *training, fields["num_symbols"], fields.get("num_queries", "-"), settings.test_length]


def plot(records: Mapping[str, Record], path: Path) -> None:
    """Draw exact match against length, one panel per task."""
    by_task = curves(records)
    rows, columns = (2, 2) if len(by_task) > 3 else (1, max(1, len(by_task)))
    title = "Exact match beyond the lengths of training: ours (solid), paper at its size (hollow, dashed)"
    with panels(path, 6.4 * columns, 4.8 * rows + 0.6, rows, columns, title, legend="shared") as axes:
        for axis, (task, by_name) in zip(axes, by_task.items()):
            for name, curve in by_name.items():
                style = styles(published.NAMES)[name]
                points = {factor: point.estimate for factor, point in curve.items()}
                draw_curve(axis, points, published.NAMES[name], **style)
                known = _published(published.MEAN, task, name)
                axis.plot(list(known), list(known.values()), "--", lw=0.9, fillstyle="none", alpha=0.6, **style)
            doubling(axis, [factor for curve in by_name.values() for factor in curve], "{:g}")
            labels = {"xlabel": "length / longest in training", "ylabel": "exact match"}
            axis.set(ylim=(-0.03, 1.04), title=RULES[task], **labels)
