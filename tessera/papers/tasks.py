"""Every task of the papers, and own questions: importing this module fills `TASKS`. A new task is a new line here."""

from tessera.papers import (  # noqa: F401
    associative_retrieval,
    babilong,
    document_qa,
    induction,
    length_generalization,
    many_shot,
    passwords,
    regbench,
    three_moons,
)
from tessera.papers.babilong import own_questions  # noqa: F401
