"""Dataclasses to plain data and back."""

import json
import math
from dataclasses import dataclass, field

import pytest

from tessera.base.dataclass_io import from_json, to_json
from tessera.base.errors import TesseraError


@dataclass(frozen=True)
class Part:
    size: int
    rate: float = 0.5

    def problems(self):
        return [("size", f"must be positive; got {self.size}.")] if self.size < 1 else []


@dataclass(frozen=True)
class Whole:
    name: str | None
    parts: tuple[Part, ...]
    factors: tuple[float, ...] = ()
    span: tuple[int, int] = (1, 2)
    options: dict[str, int] = field(default_factory=dict)
    extra: Part | None = None


WHOLE = Whole(None, (Part(1), Part(2, 0.25)), (1.0, 1.5, 2.0), (3, 4), {"a": 1}, Part(3))


def test_what_is_written_is_read_back():
    text = json.dumps(to_json(WHOLE))
    assert from_json(Whole, json.loads(text), "here") == WHOLE
    assert json.dumps(to_json(from_json(Whole, json.loads(text), "here"))) == text


def test_what_may_be_absent_is_null():
    assert from_json(Whole, {**to_json(WHOLE), "extra": None}, "here").extra is None


def test_values_that_are_no_dataclass():
    assert to_json({1: (1, math.nan), "b": [math.inf, -math.inf]}) == {"1": [1, None], "b": [None, None]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"parts": [{"size": 1}, {"size": 1, "rat": 2}]},
            "here: parts[1].rat is not a known key; got 2.",
        ),
        ({"parts": [{}]}, "here: parts[0].size must be given (an integer); got nothing."),
        ({"parts": [{"size": "x"}]}, "here: parts[0].size must be an integer; got 'x'."),
        ({"parts": [{"size": 0}]}, "here: parts[0].size must be positive; got 0."),
        ({"parts": [3]}, "here: parts[0] must be a mapping; got 3."),
        ({"factors": [1, "x"]}, "here: factors must be a list of number; got [1, 'x']."),
        ({"span": [1, 2, 3]}, "here: span must be a list of 2 values; got [1, 2, 3]."),
        ({"extra": {"size": -1}}, "here: extra.size must be positive; got -1."),
        ({"options": {"a": "b"}}, "here: options must be a mapping; got {'a': 'b'}."),
    ],
)
def test_every_problem_has_its_place(change, message):
    with pytest.raises(TesseraError) as error:
        from_json(Whole, {**to_json(WHOLE), **change}, "here")
    assert str(error.value).startswith(message)


def test_all_problems_are_told_at_once():
    with pytest.raises(TesseraError) as error:
        from_json(Whole, {"parts": 3, "nam": 1}, "here")
    assert len(str(error.value).splitlines()) == 3
