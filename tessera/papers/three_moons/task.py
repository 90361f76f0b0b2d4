"""Three moons on circular orbits: continue a sequence of their positions (Memory Mosaics, section 5)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from tessera.tasks.task import TASKS, Task, generator_of

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
LINE = 10_000  # observations of one triple from which sequences are cut
PHASE = 0.3  # radians, of every moon at observation 0
# The mean of |sin| over a circle: the deviation of who always says 0.
MEAN_MODULUS = 2 / math.pi


def common_period(periods: Sequence[float]) -> float:
    """The least time after which all moons stand as before: lcm(p1, p2, p3).

    >>> common_period((0.5, 1.5, 2.0))
    6.0
    """
    exact = [Fraction(period).limit_denominator(1000) for period in periods]
    unit = math.lcm(*(period.denominator for period in exact))
    return math.lcm(*(int(period * unit) for period in exact)) / unit


# A sequence of 800 observations holds three of the longest common period.
STEP = 3 * max(common_period(periods) for periods in TRAINING + HELD_OUT) / 800


def in_observations(period: float) -> float:
    """A time as a number of observations: 400 / 9 of them make one unit."""
    return period / STEP


@dataclass(frozen=True)
class MoonExamples:
    """Sequences of positions, cut in two.

    Attributes:
        observations: (B, context, 6), the sine and the cosine of each moon's angle. future: (B, horizon, 6), what
            follows. periods: (B, 3) in units of time. start: integers (B,), the first observation's place on the line.
    """

    observations: Tensor
    future: Tensor
    periods: Tensor
    start: Tensor

    def __len__(self) -> int:
        return len(self.observations)


@TASKS.register("three_moons")
@dataclass(frozen=True)
class ThreeMoons(Task):
    """Continue `context` observations of three moons for `horizon` more.

    Predictions are (B, horizon, 6). `error` is their mean absolute deviation (over steps and coordinates) and `skill`
    is `1 - error / (2 / pi)`: 1 without error, on average 0 for who always says 0.

    Attributes:
        periods: one triple for all sequences; None draws one of the split's (eight in training, one held out) for each.
    """

    context: int = 775
    horizon: int = 25
    periods: Periods | None = None

    summary = "continue the positions of three moons whose periods were never seen together"
    source = "Memory Mosaics, section 5 and appendix A"
    main_score = "skill"
    length_setting = "context"

    def __post_init__(self) -> None:
        self._require("context", self.context >= 1, "be at least 1")
        is_possible = self.horizon >= 1 and self.context + self.horizon <= LINE // 2
        self._require("horizon", is_possible, f"be at least 1, and at most {LINE // 2} - context")

    def sample(self, count: int, seed: int, split: str = "train") -> MoonExamples:
        """Lines of the split's triples (or of `periods`) from random observations on; see `Task.sample`."""
        triples = TRAINING if split == "train" else HELD_OUT
        if self.periods is not None:
            choices = f"be one of the {split} triples " + ", ".join(map(str, triples))
            self._require("periods", tuple(self.periods) in triples, choices)
            triples = (self.periods,)
        generator = generator_of(self, seed, split)
        length = self.context + self.horizon
        # As published for blocks of 800 and the observation behind them; shorter sequences start at the same places.
        start = torch.randint(LINE - 2 * max(length - 1, 800) - 1, (count,), generator=generator)
        periods = torch.tensor(triples, dtype=torch.float64)[torch.randint(len(triples), (count,), generator=generator)]
        positions = positions_of(periods, start, length)
        return MoonExamples(positions[:, : self.context], positions[:, self.context :], periods, start)

    def scores(self, predictions: Tensor, examples: MoonExamples) -> dict[str, Tensor]:
        """`error`, the mean absolute deviation, and `skill`: 1 for none, 0 for that of the mean position."""
        error = deviation(predictions, examples.future)
        return {"skill": 1 - error / MEAN_MODULUS, "error": error}


def positions_of(periods: Tensor, start: Tensor, length: int) -> Tensor:
    """`length` positions (B, length, 6) in float32 from observation `start` (B,) on, for periods (B, 3).

    Moon m at observation n has the angle `2 pi n step / p_m + 0.3`; columns are its sine and cosine, moon by moon.
    """
    time = (start[:, None] + torch.arange(length)).double() * STEP
    angle = 2 * math.pi / periods.double()[:, None, :] * time[..., None] + PHASE
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(2).float()


def deviation(predictions: Tensor, future: Tensor) -> Tensor:
    """Mean absolute deviation over steps and coordinates: (..., horizon, 6) twice -> (...)."""
    return (predictions - future).abs().mean((-2, -1))
