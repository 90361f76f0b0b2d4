"""Associative retrieval (ARMT paper, section 3): remember all pairs, or rewrite values and recall the latest."""

from tessera.tasks.associative_retrieval.generator import TASKS, Batch, RetrievalTask
from tessera.tasks.associative_retrieval.metrics import capacity, chance, exact_match, oracle_answers

__all__ = ["TASKS", "Batch", "RetrievalTask", "capacity", "chance", "exact_match", "oracle_answers"]
