"""Every experiment by its name. A new one of the library is a folder `papers/NAME` and an entry here."""

import importlib
from collections.abc import Iterator, Mapping

from tessera.base.errors import TesseraError
from tessera.base.registry import Registry
from tessera.papers.experiment import About, Experiment

# What `tessera tasks` prints without importing any of them: that takes seconds.
LIBRARY = {
    "armt_language": About(
        "ARMT on language: bits per byte of each segment",
        "Associative Recurrent Memory Transformer, appendix on language modeling",
    ),
    "associative_retrieval": About(
        "Associative retrieval: what a memory of fixed size recalls",
        "Associative Recurrent Memory Transformer, section 3 and appendix A",
    ),
    "attention_profiles": About(
        "Attention profiles: where one block looks",
        "Memory Mosaics, appendix D, figures 14 to 16",
    ),
    "babilong": About(
        "BABILong: facts hidden in long texts",
        "Associative Recurrent Memory Transformer, section 4",
    ),
    "document_qa": About(
        "Document questions: one of many documents holds the answer",
        "Memory Mosaics at scale (v2), section 5.2, tables 3, 4, 6 and 7; RULER, Hsieh et al. 2024",
    ),
    "induction": About(
        "Induction: one block of memories, and one or two of attention",
        "Memory Mosaics, section 3; the task of Bietti et al. 2023",
    ),
    "language_modeling": About(
        "Language models by depth and kernel",
        "Memory Mosaics, section 7; Sparse Attention as Compact Kernel Regression, section 4.1",
    ),
    "length_generalization": About(
        "Length generalisation: MQMTAR, sort, reverse",
        "Sparse Attention as Compact Kernel Regression, section 4.3, tables 2, 6 and 7",
    ),
    "many_shot": About(
        "Many-shot classification: new classes from examples in the context",
        "Memory Mosaics at scale (v2), section 5.3, figures 3, 4, 10 and 11",
    ),
    "out_of_distribution": About(
        "Loss by position on text of another kind",
        "Memory Mosaics, section 7 and figure 8; Sparse Attention as Compact Kernel Regression, figure 5",
    ),
    "regbench": About(
        "RegBench: in-context learning of regular languages",
        "Sparse Attention as Compact Kernel Regression, table 1; Memory Mosaics, section 7 and table 3",
    ),
    "three_moons": About(
        "Three moons",
        "Memory Mosaics, section 5 and appendix A, figures 4, 5 and 10",
    ),
}


class Catalogue(Registry[Experiment]):
    """The library's experiments, imported from `tessera.papers.NAME.report` when they are asked for, and added ones."""

    def __init__(self, library: Mapping[str, About]) -> None:
        super().__init__("experiment")
        self.library = library

    def about(self) -> dict[str, About]:
        """What each experiment is; imports none."""
        return {**self.library, **{name: experiment.about for name, experiment in self._entries.items()}}

    def add(self, name: str, entry: Experiment) -> Experiment:
        """Register an experiment under a name that is not taken."""
        if name in self.library:
            raise TesseraError(f"{self.kind} {name!r} is already registered")
        return super().add(name, entry)

    def __getitem__(self, name: str) -> Experiment:
        if name in self.library and name not in self._entries:
            self._entries[name] = importlib.import_module(f"tessera.papers.{name}.report").EXPERIMENT
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        return name in self.library or name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.about())

    def __len__(self) -> int:
        return len(self.about())

    def items(self) -> list[tuple[str, Experiment]]:
        """All (name, experiment) pairs, imported."""
        return [(name, self[name]) for name in self]


EXPERIMENTS = Catalogue(LIBRARY)
