"""What all tables are made of. Those of the stored results are compared with their files in tests/docs."""

import math
from types import SimpleNamespace

import pytest

from tessera.papers.experiment import Record
from tessera.papers.records import Curve, points_of
from tessera.papers.tables import curves_table, percent, settings_of, with_error
from tessera.tasks.task import Estimate


def test_lengths_are_numbers_in_order_and_a_curve_may_lack_some():
    points = points_of([{"64": (0.5, 0.1), "8": (1.0, 0.0)}, {"8": (0.5, 0.0)}])
    assert list(points) == [8, 64]
    assert points[8].mean == pytest.approx(0.75)
    made = curves_table(["model", "seeds"], [Curve("one", points, (2,)), Curve("two", {64: points[64]}, (1,))])
    assert made.splitlines()[0] == "| model | seeds | 8 | 64 |"
    assert made.splitlines()[2:] == ["| one | 2 | 75.0 ± 25.0 | 50.0 (1 of 2 seeds) |", "| two | 1 |  | 50.0 |"]


def test_errors_are_over_examples_of_one_seed_and_over_seeds_of_several():
    assert points_of([{"8": (0.5, 0.1)}])[8] == Estimate(0.5, 0.1, 1)
    points = points_of([{"8": (0.5, 0.1), "64": (0.5, 0.1)}, {"8": (0.7, 0.2)}, {"8": (0.9, 0.3), "64": (0.8, 0.1)}])
    assert points[8] == (pytest.approx(0.7), pytest.approx(0.2 / 3**0.5), 3)
    assert points[64] == (pytest.approx(0.65), pytest.approx(0.15), 2)
    assert math.isnan(points_of([{"8": (0.5, 0.1), "64": (0.5, 0.1)}, {"8": (0.7, 0.2)}])[64].standard_error)


def test_numbers_that_are_none_in_a_record_are_left_out():
    """JSON has null where a score or its error was not a number: tables ended in a TypeError."""
    single, missing = points_of([{"64": (0.5, None)}]), points_of([{"64": (None, None)}])
    both = points_of([{"64": (None, None), "8": (1.0, 0.1)}, {"64": (0.5, 0.1), "8": (1.0, 0.1)}])
    made = curves_table(["l"], [Curve("x", single), Curve("y", missing), Curve("z", both)])
    lines = ["| x |  | 50.0 |", "| y |  | nan |", "| z | 100.0 ± 0.0 | 50.0 (1 of 2 seeds) |"]
    assert made.splitlines()[2:] == lines


def test_a_setting_that_no_record_has_is_a_dash():
    record = Record(SimpleNamespace(recipe={}), {}, {})
    assert "| width | - | 5 |" in settings_of([record], {"width": ("recipe.model.width", 5)})


def test_cells():
    assert with_error(Estimate(0.5, 0.125, 2), "+.3f") == "+0.500 ± 0.125"
    assert with_error(Estimate(0.5, float("nan"), 1)) == "0.50"
    assert with_error(None) == percent(None) == settings_of([], {"steps": ("steps", 5)}) == ""
