"""Every task of the library: importing this module fills `TASKS`. A new task is a new line here."""

# ruff: noqa: F401
from tessera.tasks import (
    associative_retrieval,
    babilong,
    document_qa,
    induction,
    length_generalization,
    many_shot,
    regbench,
    three_moons,
)
from tessera.tasks.task import TASKS

__all__ = ["TASKS"]
