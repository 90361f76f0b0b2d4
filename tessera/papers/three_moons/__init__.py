"""Three moons (Memory Mosaics, section 5): predict the positions of moons whose motions are independent."""

from tessera.papers.three_moons.task import MoonExamples, ThreeMoons

__all__ = ["MoonExamples", "ThreeMoons"]
