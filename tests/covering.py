"""Parametrisations of which a part stands for the whole by default: the other cases are marked `grid`."""

from collections.abc import Callable, Container, Iterable
from itertools import product
from typing import Any

import pytest

without_grid = False  # set by conftest.py where marked cases would be collected to be deselected


def some(arguments: str | tuple[str, ...], cases: Iterable[Any], by_default: Container[Any] | Callable, ids=None):
    """`parametrize` over `cases`: those `by_default` (values, or a predicate of them) stand for all."""
    is_single = isinstance(arguments, str)
    stands = by_default if callable(by_default) else lambda *case: (case[0] if is_single else case) in by_default
    tuples = [(case,) if is_single else tuple(case) for case in cases]
    names, ids = (ids, None) if isinstance(ids, list) else ([None] * len(tuples), ids)
    marked = [
        pytest.param(*case, id=name, marks=() if stands(*case) else pytest.mark.grid)
        for case, name in zip(tuples, names, strict=True)
    ]
    return pytest.mark.parametrize(arguments, _collected(marked), ids=ids)


def each_value(indirect=False, **axes):
    """`parametrize` over `axes` (argument to values, or to {name: value}): every value stands in a case by default."""
    axes = {
        argument: values if isinstance(values, dict) else {str(value): value for value in values}
        for argument, values in axes.items()
    }
    names = [list(values) for values in axes.values()]
    default = {
        tuple(of_axis[place if place < len(of_axis) else 0] for of_axis in names)
        for place in range(max(map(len, names)))
    }
    cases = [
        pytest.param(
            *(axes[argument][name] for argument, name in zip(axes, row)),
            id="-".join(row),
            marks=() if row in default else pytest.mark.grid,
        )
        for row in product(*names)
    ]
    return pytest.mark.parametrize(tuple(axes), _collected(cases), indirect=indirect)


def _collected(cases):
    return [case for case in cases if not case.marks] or cases if without_grid else cases
