"""What all tables are made of."""

from dataclasses import dataclass, field

import pytest

from tessera.papers.experiment import Record
from tessera.papers.records import Curve, grouped, having, num_seeds, points_of
from tessera.papers.tables import curves_table, percent, settings_of, with_error
from tessera.tasks.task import Estimate


@dataclass(frozen=True)
class Settings:
    seed: int
    model: str = "a"
    recipe: dict = field(default_factory=dict)


def record(seed, model="a", loss=1.0, **recipe):
    return Record(Settings(seed, model, recipe), {"loss": loss, "scores": {"right": [loss, 0.25, 9]}}, {})


RECORDS = {"x": record(1, "b", 2.0), "y": record(1, "a", 4.0, steps=10), "z": record(0, "a", 3.0, steps=1000)}


def test_records_are_grouped_in_the_order_that_is_given_and_by_seed():
    groups = grouped(RECORDS, lambda settings: settings.model, ("c", "b"))
    assert {model: [one.configuration.seed for one in seeds] for model, seeds in groups.items()} == {
        "b": [1],
        "a": [0, 1],
    }
    assert list(groups) == ["b", "a"]


def test_records_that_have_some_settings():
    assert list(having(RECORDS, model="a")) == ["y", "z"]
    assert list(having(RECORDS, model="a", seed=0)) == ["z"]


def test_settings_are_paths_or_functions_and_none_where_no_record_has_one():
    rows = {"steps": ("recipe.steps", 5), "width": ("recipe.model.width", None), "seeds": (num_seeds, 1)}
    made = settings_of(RECORDS.values(), rows).splitlines()
    assert made[0] == "| setting | here | paper |"
    assert made[2:] == ["| steps | 10 to 1,000 | 5 |", "| width | - | - |", "| seeds | 2 | 1 |"]
    assert settings_of([], rows) == ""


def test_lengths_are_numbers_in_order_and_a_curve_may_lack_some():
    points = points_of([{"64": (0.5, 0.1), "8": (1.0, 0.0)}, {"8": (0.5, 0.0)}])
    assert list(points) == [8, 64]
    assert points[8].mean == pytest.approx(0.75)
    made = curves_table(["model", "seeds"], [Curve("one", points, (2,)), Curve("two", {64: points[64]}, (1,))])
    assert made.splitlines()[0] == "| model | seeds | 8 | 64 |"
    assert made.splitlines()[2:] == ["| one | 2 | 75.0 ± 25.0 | 50.0 ± 10.0 |", "| two | 1 |  | 50.0 ± 10.0 |"]


def test_cells():
    assert with_error(Estimate(0.5, 0.125, 2), "+.3f") == "+0.500 ± 0.125"
    assert with_error(Estimate(0.5, float("nan"), 1)) == "0.50"
    assert with_error(None) == percent(None) == ""
