"""RegBench: in-context learning of random regular languages."""

from tessera.tasks.regbench.automaton import Automaton
from tessera.tasks.regbench.problems import Problems
from tessera.tasks.regbench.task import RegBench

__all__ = ["Automaton", "Problems", "RegBench"]
