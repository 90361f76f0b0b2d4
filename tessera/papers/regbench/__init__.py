"""RegBench: in-context learning of random regular languages."""

from tessera.papers.regbench.automaton import Automaton
from tessera.papers.regbench.task import Problems, RegBench

__all__ = ["Automaton", "Problems", "RegBench"]
