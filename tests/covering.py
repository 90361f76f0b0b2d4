"""Parametrisations of which a part stands for the whole by default: the other cases are marked `grid`."""

from collections.abc import Container, Iterable
from itertools import combinations, product
from typing import Any

import pytest


def pairwise(indirect=False, **axes):
    """`parametrize` over `axes` (argument to values, or to {name: value}): every pair of values by default."""
    return _covering(2, axes, indirect)


def each_value(indirect=False, **axes):
    """`parametrize` over `axes` (argument to values, or to {name: value}): every value by default."""
    return _covering(1, axes, indirect)


def some(arguments: str | tuple[str, ...], cases: Iterable[Any], by_default: Container[Any], ids=None):
    """`parametrize` over `cases` (tuples where `arguments` are several), of which those `by_default` stand for all."""
    several = isinstance(arguments, tuple)
    return pytest.mark.parametrize(
        arguments,
        [
            pytest.param(*(case if several else (case,)), marks=() if case in by_default else pytest.mark.grid)
            for case in cases
        ],
        ids=ids,
    )


def _covering(size: int, axes: dict[str, Any], indirect):
    axes = {
        argument: values if isinstance(values, dict) else {str(value): value for value in values}
        for argument, values in axes.items()
    }
    rows = [tuple(zip(axes, names)) for names in product(*axes.values())]
    left = {values for row in rows for values in combinations(row, size)}
    default = set()
    while left:  # greedily
        row = max(rows, key=lambda row: sum(values in left for values in combinations(row, size)))
        left -= set(combinations(row, size))
        default.add(row)
    cases = [
        pytest.param(
            *(axes[argument][name] for argument, name in row),
            id="-".join(name for _, name in row),
            marks=() if row in default else pytest.mark.grid,
        )
        for row in rows
    ]
    return pytest.mark.parametrize(tuple(axes), cases, indirect=indirect)
