"""Every experiment of the library: importing this module fills `EXPERIMENTS`. A new experiment is a new line here."""

# ruff: noqa: F401
from tessera.experiments.associative_retrieval import experiment as associative_retrieval
from tessera.experiments.experiment import EXPERIMENTS
from tessera.experiments.length_generalization import experiment as length_generalization
from tessera.experiments.regbench import experiment as regbench
from tessera.experiments.three_moons import experiment as three_moons

__all__ = ["EXPERIMENTS"]
