"""Associative retrieval (ARMT paper, section 3): remember all pairs, or rewrite values and recall the latest."""

from tessera.papers.associative_retrieval.task import RULES, AssociativeRetrieval, capacity, capacity_error

__all__ = ["RULES", "AssociativeRetrieval", "capacity", "capacity_error"]
