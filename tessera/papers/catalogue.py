"""Every experiment of the library: importing this module fills `EXPERIMENTS`. A new experiment is a new line here."""

# ruff: noqa: F401
from tessera.papers.armt_language import experiment as armt_language
from tessera.papers.associative_retrieval import experiment as associative_retrieval
from tessera.papers.attention_profiles import experiment as attention_profiles
from tessera.papers.babilong import experiment as babilong
from tessera.papers.document_qa import experiment as document_qa
from tessera.papers.experiment import EXPERIMENTS
from tessera.papers.induction import experiment as induction
from tessera.papers.language_modeling import experiment as language_modeling
from tessera.papers.length_generalization import experiment as length_generalization
from tessera.papers.many_shot import experiment as many_shot
from tessera.papers.out_of_distribution import experiment as out_of_distribution
from tessera.papers.regbench import experiment as regbench
from tessera.papers.three_moons import experiment as three_moons

__all__ = ["EXPERIMENTS"]
