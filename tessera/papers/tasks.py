"""Every task of the papers, and own questions: importing this module fills `TASKS`. A new task is a new line here."""

# ruff: noqa: F401

import tessera.papers.associative_retrieval.task
import tessera.papers.babilong.task
import tessera.papers.document_qa.task
import tessera.papers.induction.task
import tessera.papers.length_generalization.task
import tessera.papers.many_shot.task
import tessera.papers.passwords.task
import tessera.papers.regbench.task
import tessera.papers.three_moons.task
from tessera.papers.babilong import own_questions
