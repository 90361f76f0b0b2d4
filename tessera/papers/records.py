"""What tables and figures show: records in groups, and numbers over their seeds with standard errors."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch

from tessera.papers.experiment import Record
from tessera.tasks.task import Estimate, estimate

Group = TypeVar("Group")


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


def over_seeds(values: Sequence[Sequence[float | None]]) -> Estimate:
    """Of each seed's (mean, standard error over examples, ...) the mean and its standard error over seeds.

    A single seed keeps its standard error over examples.
    """
    if len(values) == 1:
        mean, error = _numbers(values[0][:2]).tolist()
        return Estimate(mean, error, 1)
    return mean_of([value[0] for value in values])


def mean_of(values: Sequence[float | None]) -> Estimate:
    """The mean of numbers and its standard error; the error is not a number for a single one.

    What is not a number (in records None) is left out.
    """
    return estimate(torch.from_numpy(_numbers(values)))


def _numbers(values: Sequence[float | None]) -> np.ndarray:
    return np.array(values, dtype=np.float64)  # which makes NaN of None, what JSON has in its place


def score(seeds: Sequence[Record], *keys: str) -> Estimate:
    """`over_seeds` of what the outcomes have under these keys, each inside the one before."""
    return over_seeds([reduce(getitem, keys, cast(Any, record.outcome)) for record in seeds])


def difference(ours: Sequence[Record], theirs: Sequence[Record], value: Callable[[Record], float]) -> Estimate | None:
    """The mean of our `value` minus theirs over the seeds of both, which read the same batches; None without any."""
    others = {record.configuration.seed: record for record in theirs}
    pairs = [(record, others[seed]) for record in ours if (seed := record.configuration.seed) in others]
    return mean_of([value(our) - value(their) for our, their in pairs]) if pairs else None


def points_of(seeds: Sequence[Mapping[str, Sequence[float | None]]]) -> dict[float, Estimate]:
    """`over_seeds` at each length that some seed has, shortest first; `seeds` map lengths, as JSON has them, to scores.

    Of several seeds the error is over seeds at every length: not a number where a single one was measured.

    >>> points_of([{"64": (0.5, 0.1), "8": (1.0, 0.0)}])
    {8: Estimate(mean=1.0, standard_error=0.0, count=1), 64: Estimate(mean=0.5, standard_error=0.1, count=1)}
    """
    mean = over_seeds if len(seeds) == 1 else lambda scores: mean_of([score[0] for score in scores])
    numbers = {float(length): length for scores in seeds for length in scores}
    return {
        int(number) if number.is_integer() else number: mean([s[length] for s in seeds if length in s])
        for number, length in sorted(numbers.items())
    }


def num_seeds(records: Iterable[Record]) -> int:
    """How many seeds there are, for `settings_of`."""
    return len({record.configuration.seed for record in records})


def spread(values: Iterable[Any]) -> Any:
    """One setting over the runs that have it (others say None): the value, or the smallest and the largest."""
    distinct = sorted(set(values) - {None})
    if len(distinct) < 2:
        return distinct[0] if distinct else None
    return f"{as_cell(distinct[0])} to {as_cell(distinct[-1])}"


def as_cell(value: Any) -> str:
    """A setting as text."""
    if value is None:
        return "-"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    return str(value)
