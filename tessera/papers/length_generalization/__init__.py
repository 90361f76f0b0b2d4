"""Length generalisation: MQMTAR, reverse and sort, learned on short sequences and judged on long ones."""

from tessera.papers.length_generalization.orderings import Reverse, Sort
from tessera.papers.length_generalization.recall import MultiQueryRecall
from tessera.papers.length_generalization.sequences import SourceTargetTask

__all__ = ["MultiQueryRecall", "Reverse", "Sort", "SourceTargetTask"]
