"""Tables in Markdown: cells, quantities by length, trainings, settings here and in the paper."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tessera.papers.experiment import Record
from tessera.papers.records import Curve, as_cell, by_model, spread
from tessera.tasks.task import Estimate

# Heading -> (what a setting is here, the paper's value); see `settings_of`.
SettingsRows = Mapping[str, tuple[str | Callable[[list[Record]], Any], Any]]


def with_error(value: Estimate | None, form: str = ".2f") -> str:
    """A cell: `mean ± standard error`, without the error where there is none; empty for None.

    >>> with_error(Estimate(0.5, 0.125, 2), "+.3f")
    '+0.500 ± 0.125'
    """
    if value is None:
        return ""
    mean, error = value[:2]
    return f"{mean:{form}}" if error != error else f"{mean:{form}} ± {error:{form.lstrip('+')}}"


def percent(value: Estimate | None) -> str:
    """A cell: mean and standard error of a share in percent."""
    return with_error(value and Estimate(100 * value.mean, 100 * value.standard_error, value.count), ".1f")


def markdown(headings: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table; empty without rows."""
    headings, below = list(headings), list(rows)
    lines: list[Iterable[object]] = [headings, ["---"] * len(headings), *below] if below else []
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def fewer(points: Mapping[float, Estimate], length: float) -> str:
    """What a cell says of a length that not all seeds of its row have: means of different seeds stand side by side."""
    count, most = points[length].count, max(point.count for point in points.values())
    return f" ({count} of {most} seeds)" if count < most else ""


def curves_table(
    headings: Sequence[object], curves: Sequence[Curve], cell: Callable[[Estimate], str] = percent, length: str = "{:,}"
) -> str:
    """A row for each curve: its label under the first of `headings`, its notes, and a `cell` for each length."""
    lengths = sorted({point for curve in curves for point in curve.points})
    rows = [
        [
            curve.label,
            *curve.notes,
            *(cell(curve.points[n]) + fewer(curve.points, n) if n in curve.points else "" for n in lengths),
        ]
        for curve in curves
    ]
    return markdown([*headings, *map(length.format, lengths)], rows)


def stages_table(records: Mapping[str, Record], cells: Mapping[str, str], minutes: str = "minutes") -> str:
    """A row for each training by a curriculum: parameters, `cells` of all stages (heading -> form of one), minutes."""
    rows = []
    for key, record in records.items():
        stages = record.outcome["stages"]
        of_stages = ["; ".join(form.format(**stage) for stage in stages) or "-" for form in cells.values()]
        seconds = sum(stage["seconds"] for stage in stages)
        rows.append([key, f"{record.outcome['parameters']:,}", *of_stages, f"{seconds / 60:.1f}" if stages else "-"])
    return markdown(["run", "parameters", *cells, minutes], rows)


def trainings_table(
    records: Mapping[str, Record], names: Mapping[str, str], loss: str, shares: Callable[[Record], Mapping[str, float]]
) -> str:
    """A row for each training: model, seed, `loss` at its end, and `shares` of it (heading -> share) in percent."""
    rows, headings = [], list(shares(next(iter(records.values()))))
    for model, seeds in by_model(records, names).items():
        for record in seeds:
            about = [names[model], record.configuration.seed, f"{record.outcome['training']['loss']:.2f}"]
            rows.append([*about, *(f"{100 * share:.1f}" for share in shares(record).values())])
    return markdown(["model", "seed", loss, *headings], rows)


def settings_table(rows: Mapping[str, tuple[Any, Any]]) -> str:
    """What each setting is here, beside the paper's (`-` where one of them says nothing)."""
    cells = [[heading, as_cell(ours), as_cell(paper)] for heading, (ours, paper) in rows.items()]
    return markdown(["setting", "here", "paper"], cells)


def settings_of(records: Iterable[Record], rows: SettingsRows) -> str:
    """A `settings_table` of `rows`, heading -> (what it is here, the paper's value).

    What it is here is a dotted path of fields and keys in the configurations that have it (`spread`), or a function of
    the records. Empty without records.
    """
    known = list(records)

    def ours(here: str | Callable[[list[Record]], Any]) -> Any:
        return here(known) if callable(here) else spread(_setting(record.configuration, here) for record in known)

    return settings_table({heading: (ours(here), paper) for heading, (here, paper) in rows.items()}) if known else ""


def _setting(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return value
