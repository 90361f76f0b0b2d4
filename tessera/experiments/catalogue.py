"""Every experiment of the library: importing this module fills `EXPERIMENTS`. A new experiment is a new line here."""

# ruff: noqa: F401
from tessera.experiments.armt_language import experiment as armt_language
from tessera.experiments.associative_retrieval import experiment as associative_retrieval
from tessera.experiments.attention_profiles import experiment as attention_profiles
from tessera.experiments.babilong import experiment as babilong
from tessera.experiments.document_qa import experiment as document_qa
from tessera.experiments.experiment import EXPERIMENTS
from tessera.experiments.induction import experiment as induction
from tessera.experiments.language_modeling import experiment as language_modeling
from tessera.experiments.length_generalization import experiment as length_generalization
from tessera.experiments.many_shot import experiment as many_shot
from tessera.experiments.out_of_distribution import experiment as out_of_distribution
from tessera.experiments.regbench import experiment as regbench
from tessera.experiments.three_moons import experiment as three_moons

__all__ = ["EXPERIMENTS"]
