"""What tables are made of: records in groups, means over seeds with standard errors, Markdown."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple, TypeVar, cast

import torch

from tessera.papers.experiment import Record
from tessera.tasks.task import Estimate, estimate

Group = TypeVar("Group")
# Heading -> (what a setting is here, the paper's value); see `settings_of`.
SettingsRows = Mapping[str, tuple[str | Callable[[list[Record]], Any], Any]]


class Curve(NamedTuple):
    """A row of a table and a line of a figure: a quantity by length, over seeds. `notes`: cells after the label."""

    label: str
    points: Mapping[float, Estimate]
    notes: tuple[object, ...] = ()


def having(records: Mapping[str, Record], **settings: Any) -> dict[str, Record]:
    """The records whose configurations have these `settings`."""
    return {
        key: record
        for key, record in records.items()
        if all(getattr(record.configuration, name) == value for name, value in settings.items())
    }


def grouped(
    records: Mapping[str, Record], group: Callable[[Any], Group], order: Iterable[Group] = ()
) -> dict[Group, list[Record]]:
    """The records whose configurations have the same `group`, by seed; groups in `order`, others after those."""
    groups: dict[Group, list[Record]] = {key: [] for key in order}
    for record in sorted(records.values(), key=lambda record: record.configuration.seed):
        groups.setdefault(group(record.configuration), []).append(record)
    return {key: seeds for key, seeds in groups.items() if seeds}


def by_model(records: Mapping[str, Record], order: Iterable[str]) -> dict[str, list[Record]]:
    """The records of each model's seeds, models in `order`."""
    return grouped(records, lambda settings: settings.model, order)


def over_seeds(values: Sequence[Sequence[float]]) -> Estimate:
    """Of each seed's (mean, standard error over examples, ...) the mean and its standard error over seeds.

    A single seed keeps its standard error over examples.
    """
    if len(values) == 1:
        mean, error = values[0][:2]
        return Estimate(mean, error, 1)
    return mean_of([value[0] for value in values])


def mean_of(values: Sequence[float]) -> Estimate:
    """The mean of numbers and its standard error; the error is not a number for a single one."""
    return estimate(torch.tensor(values, dtype=torch.float64))


def score(seeds: Sequence[Record], *keys: str) -> Estimate:
    """`over_seeds` of what the outcomes have under these keys, each inside the one before."""
    return over_seeds([reduce(getitem, keys, cast(Any, record.outcome)) for record in seeds])


def difference(ours: Sequence[Record], theirs: Sequence[Record], value: Callable[[Record], float]) -> Estimate | None:
    """The mean of our `value` minus theirs over the seeds of both, which read the same batches; None without any."""
    others = {record.configuration.seed: record for record in theirs}
    pairs = [(record, others[seed]) for record in ours if (seed := record.configuration.seed) in others]
    return mean_of([value(our) - value(their) for our, their in pairs]) if pairs else None


def points_of(seeds: Sequence[Mapping[str, Sequence[float]]]) -> dict[float, Estimate]:
    """`over_seeds` at each length that some seed has, shortest first; `seeds` map lengths, as JSON has them, to scores.

    >>> points_of([{"64": (0.5, 0.1), "8": (1.0, 0.0)}])
    {8: Estimate(mean=1.0, standard_error=0.0, count=1), 64: Estimate(mean=0.5, standard_error=0.1, count=1)}
    """
    lengths = {length for scores in seeds for length in scores}
    numbers = {float(length): length for length in lengths}
    return {
        int(number) if number.is_integer() else number: over_seeds([s[length] for s in seeds if length in s])
        for number, length in sorted(numbers.items())
    }


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
    if value is None:
        return ""
    return with_error(Estimate(100 * value.mean, 100 * value.standard_error, value.count), ".1f")


def markdown(headings: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table; empty without rows."""
    headings, below = list(headings), list(rows)
    lines: list[Iterable[object]] = [headings, ["---"] * len(headings), *below] if below else []
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def curves_table(
    headings: Sequence[object],
    curves: Sequence[Curve],
    cell: Callable[[Estimate], str] = percent,
    length: str = "{:,}",
) -> str:
    """A row for each curve: its label under the first of `headings`, its notes, and a `cell` for each length."""
    lengths = sorted({point for curve in curves for point in curve.points})
    rows = [
        [curve.label, *curve.notes, *(cell(curve.points[n]) if n in curve.points else "" for n in lengths)]
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
    cells = [[heading, _cell(ours), _cell(paper)] for heading, (ours, paper) in rows.items()]
    return markdown(["setting", "here", "paper"], cells)


def settings_of(records: Iterable[Record], rows: SettingsRows) -> str:
    """A `settings_table` of `rows`, heading -> (what it is here, the paper's value).

    What it is here is a dotted path of fields and keys in the configurations that have it (`spread`), or a function of
    the records. Empty without records.
    """
    known = list(records)

    def ours(here: str | Callable[[list[Record]], Any]) -> Any:
        return here(known) if callable(here) else spread(_found(known, here.split(".")))

    return settings_table({heading: (ours(here), paper) for heading, (here, paper) in rows.items()}) if known else ""


def num_seeds(records: Iterable[Record]) -> int:
    """How many seeds there are, for `settings_of`."""
    return len({record.configuration.seed for record in records})


def _found(records: Iterable[Record], path: Sequence[str]) -> Iterator[Any]:
    for record in records:
        value = record.configuration
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
        if value is not None:
            yield value


def spread(values: Iterable[Any]) -> Any:
    """One setting over several runs: the value, or the smallest and the largest; None for no run."""
    distinct = sorted(set(values))
    if len(distinct) < 2:
        return distinct[0] if distinct else None
    return f"{_cell(distinct[0])} to {_cell(distinct[-1])}"


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    return str(value)
