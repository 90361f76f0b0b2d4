"""Which moons there are: triples of periods, those of training apart from the held-out one."""

from collections.abc import Sequence
from fractions import Fraction
from math import lcm

Periods = tuple[float, float, float]

CANDIDATES = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5)
# Of the 35 triples of candidates, those of smallest common period. Six have one of at most 5, five tie at 6; the
# published code took three of these by an unstable sort, so the choice is a list and not a rule.
TRAINING: tuple[Periods, ...] = (
    (0.5, 1.0, 2.0),
    (0.5, 1.0, 1.5),
    (0.5, 1.0, 3.0),
    (0.5, 1.5, 3.0),
    (1.0, 1.5, 3.0),
    (0.5, 1.0, 2.5),
    (0.5, 1.5, 2.0),
    (1.5, 2.0, 3.0),
)
HELD_OUT: tuple[Periods, ...] = ((1.0, 2.0, 3.0),)


def common_period(periods: Sequence[float]) -> float:
    """The least time after which all moons stand as before: lcm(p1, p2, p3).

    >>> common_period((0.5, 1.5, 2.0))
    6.0
    """
    exact = [Fraction(period).limit_denominator(1000) for period in periods]
    unit = lcm(*(period.denominator for period in exact))
    return lcm(*(int(period * unit) for period in exact)) / unit


# A sequence of 800 observations holds three of the longest common period.
STEP = 3 * max(common_period(periods) for periods in TRAINING + HELD_OUT) / 800


def in_observations(period: float) -> float:
    """A time as a number of observations: 400 / 9 of them make one unit."""
    return period / STEP
