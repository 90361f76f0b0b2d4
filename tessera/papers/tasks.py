"""Every task of the papers: importing this module fills `TASKS`. A new task is a new line here."""

from tessera.papers import (  # noqa: F401
    associative_retrieval,
    babilong,
    document_qa,
    induction,
    length_generalization,
    many_shot,
    regbench,
    three_moons,
)
