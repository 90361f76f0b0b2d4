"""Length generalisation: MQMTAR, reverse and sort, learned on short sequences and judged on long ones."""

from tessera.papers.length_generalization.task import MultiQueryRecall, Reverse, Sort, SourceTargetTask

__all__ = ["MultiQueryRecall", "Reverse", "Sort", "SourceTargetTask"]
