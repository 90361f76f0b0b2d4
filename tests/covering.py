"""Parametrisations that cover every value of every axis and every pair of values, in place of all combinations."""

from itertools import combinations, product

import pytest


def pairwise(**axes):
    """`pytest.mark.parametrize` over `axes` (argument to {name: value}); combinations without a new pair are slow."""
    rows = [tuple(zip(axes, names)) for names in product(*axes.values())]
    left = {pair for row in rows for pair in combinations(row, 2)}
    default = set()
    while left:  # greedily
        row = max(rows, key=lambda row: sum(pair in left for pair in combinations(row, 2)))
        left -= set(combinations(row, 2))
        default.add(row)
    cases = [
        pytest.param(
            *(axes[argument][name] for argument, name in row),
            id="-".join(name for _, name in row),
            marks=() if row in default else pytest.mark.slow,
        )
        for row in rows
    ]
    return pytest.mark.parametrize(tuple(axes), cases)
