"""Induction (Bietti et al. 2023): what followed a trigger earlier in the sequence follows it again."""

from tessera.papers.induction.task import Bigrams, Induction, InductionDetails, shakespeare_bigrams

__all__ = ["Bigrams", "Induction", "InductionDetails", "shakespeare_bigrams"]
