"""Induction (Bietti et al. 2023): what followed a trigger earlier in the sequence follows it again."""

from tessera.papers.induction.bigrams import Bigrams, shakespeare_bigrams
from tessera.papers.induction.task import Induction, InductionDetails

__all__ = ["Bigrams", "Induction", "InductionDetails", "shakespeare_bigrams"]
