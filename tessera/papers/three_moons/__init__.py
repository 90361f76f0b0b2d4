"""Three moons (Memory Mosaics, section 5): predict the positions of moons whose motions are independent."""

from tessera.papers.three_moons.task import (
    HELD_OUT,
    MEAN_MODULUS,
    STEP,
    TRAINING,
    MoonExamples,
    Periods,
    ThreeMoons,
    common_period,
    deviation,
    in_observations,
    positions_of,
    skill,
)

__all__ = [
    "HELD_OUT",
    "MEAN_MODULUS",
    "STEP",
    "TRAINING",
    "MoonExamples",
    "Periods",
    "ThreeMoons",
    "common_period",
    "deviation",
    "in_observations",
    "positions_of",
    "skill",
]
