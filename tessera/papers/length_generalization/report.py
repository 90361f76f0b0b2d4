"""Length generalisation: ours beside the paper's, task by task, and where exact match is lost."""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from tessera.papers.experiment import Record
from tessera.papers.length_generalization import published
from tessera.papers.tables import markdown, over_seeds, with_error
from tessera.tasks.task import Estimate

TITLES = {"mqmtar": "MQMTAR", "sort": "Sort", "reverse": "Reverse", "sort_long": "Sort, four times as long"}


class Point(NamedTuple):
    """Exact match at one length over seeds (of one seed: its error is over examples), and the best seed's."""

    estimate: Estimate
    best: float


Curve = Mapping[float, Point]


def curves(records: Mapping[str, Record]) -> dict[str, dict[str, Curve]]:
    """Task -> row -> length factor -> exact match, in the order of the tables."""
    scores: dict = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for settings, outcome in _ordered(records):
        for factor, values in outcome["scores"].items():
            scores[settings.key][settings.name][float(factor)].append(values["exact_match"])
    return {
        task: {name: {f: _point(seeds) for f, seeds in sorted(points.items())} for name, points in rows.items()}
        for task, rows in scores.items()
    }


def _ordered(records: Mapping[str, Record]) -> list[tuple]:
    """Settings and outcomes, task by task, row by row, seed by seed."""
    tasks, names = list(TITLES), list(published.NAMES)
    pairs = [(record.configuration, record.outcome) for record in records.values()]
    return sorted(pairs, key=lambda pair: (tasks.index(pair[0].key), names.index(pair[0].name), pair[0].seed))


def _point(seeds: list[list[float]]) -> Point:
    return Point(over_seeds(seeds), max(mean for mean, *_ in seeds))


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
    papers = {factor: _published(task, name, factor) for factor in factors}
    cells = [_cell(curve.get(factor), papers[factor]) for factor in factors]
    known = {factor: numbers[0] for factor, numbers in papers.items() if numbers is not None}
    ours = half({factor: point.estimate.mean for factor, point in curve.items()})
    cells.append(f"{ours} *{half(known)}*" if len(known) > 1 else ours)
    return [published.NAMES[name], str(max(point.estimate.count for point in curve.values())), *cells]


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


def _cell(point: Point | None, paper: tuple[float, float] | None) -> str:
    ours = "" if point is None else with_error(point.estimate)
    if point is not None and point.estimate.count > 1:
        ours += f" ({point.best:.2f})"
    return ours if paper is None else f"{ours} *{paper[0]:.2f} ({paper[1]:.2f})*"


def _published(task: str, name: str, factor: float) -> tuple[float, float] | None:
    """Mean and best seed."""
    task = task.removesuffix("_long")
    if name not in published.MEAN or factor not in published.FACTORS[task]:
        return None
    place = published.FACTORS[task].index(factor)
    mean, best = published.MEAN[name][task][place], published.BEST[name][task][place]
    return None if mean is None or best is None else (mean, best)


def _sharper(records: Mapping[str, Record]) -> str:
    """Scores at the longest length that still works, as trained and with sharper memories (see evaluate.py)."""
    rows = []
    for settings, outcome in _ordered(records):
        for factor, sharp in outcome.get("sharper", {}).items():
            scores = outcome["scores"][factor]
            if scores["exact_match"][0] + sharp["exact_match"][0] == 0:
                continue  # nothing to see
            names = ("exact_match", "token_accuracy", "first_symbol", "second_symbol")
            cells = [f"{scores[name][0]:.2f} -> {sharp[name][0]:.2f}" if name in sharp else "" for name in names]
            rows.append([TITLES[settings.key], published.NAMES[settings.name], f"{factor}x", *cells])
    headings = ["task", "kernel", "length", "exact match", "all symbols", "first symbol", "second symbol"]
    return markdown(headings, rows) if rows else ""


def _second_symbols(records: Mapping[str, Record]) -> str:
    """At the middle length: right second symbols, where the first says which value it is and where it does not."""
    rows = []
    for settings, outcome in _ordered(records):
        factor = list(outcome["scores"])[len(outcome["scores"]) // 2]
        scores = outcome["scores"][factor]
        names = ("first_symbol", "second_alone", "second_shared")
        if all(name in scores for name in names):
            cells = [with_error(over_seeds([scores[name]])) for name in names]
            rows.append([published.NAMES[settings.name], f"{factor}x", *cells])
    headings = ["kernel", "length", "first symbol", "second, first occurs once", "second, first shared"]
    return markdown(headings, rows) if rows else ""


def _settings(records: Mapping[str, Record]) -> str:
    headings = ["task", "", "layers", "width", "heads", "slots", "steps", "batch", "peak rate", "source tokens"]
    headings += ["symbols", "queries", "1x is"]
    rows = []
    for task, settings in {settings.key: settings for settings, _ in _ordered(records)}.items():
        fields, name = settings.task_fields, settings.task
        source = f"{fields['length'] - fields['spread']} to {fields['length'] + fields['spread']}"
        sizes = (settings.num_layers, settings.hidden_size, settings.num_heads, settings.num_persistent_slots)
        ours: list[object] = [
            *sizes,
            f"{settings.fit.steps:,}",
            settings.batch_size,
            f"{settings.fit.learning_rate:g}",
            source,
        ]
        rows.append([TITLES[task], "here", *ours, fields["num_symbols"], fields.get("num_queries", "-")])
        theirs: list[object] = [published.DEPTH[name], published.WIDTH, published.HEADS, published.SLOTS]
        theirs += [f"{published.EXAMPLES[name] // published.BATCH:,}", published.BATCH, published.LEARNING_RATE]
        theirs += [published.SOURCE, published.SYMBOLS[name], published.QUERIES if name == "mqmtar" else "-"]
        rows[-1].append(settings.test_length)
        rows.append(["", "paper", *theirs, published.TEST_LENGTH])
    return markdown(headings, rows)
