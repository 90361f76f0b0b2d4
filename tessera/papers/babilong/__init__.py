"""BABILong: facts of bAbI's stories hidden in books of any length, and questions about them."""

from tessera.papers.babilong.task import BABILong

__all__ = ["BABILong"]
