"""RegBench: in-context learning of random regular languages."""

from tessera.papers.regbench.task import Automaton, Problems, RegBench

__all__ = ["Automaton", "Problems", "RegBench"]
