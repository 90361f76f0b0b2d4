"""Many-shot classification: learn classes that were never seen from examples in the context."""

from tessera.papers.many_shot.task import ManyShot

__all__ = ["ManyShot"]
