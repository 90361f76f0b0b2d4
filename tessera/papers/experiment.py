"""What an experiment is (runs of a budget, how one is done, what is shown of all), and every experiment by its name."""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from tessera.base.errors import TesseraError, did_you_mean, expect
from tessera.base.registry import Registry

# Those that Sparse Attention as Compact Kernel Regression compares, in the order of its tables: names in our tables.
PAPER_KERNELS = {
    "gaussian": "Gaussian",
    "sparsemax": "Epanechnikov (sparsemax)",
    "biweight": "Biweight",
    "triweight": "Triweight",
    "relumax": "Epanechnikov (ReLUmax)",
    "normalized_relu": "Epanechnikov (normalised ReLU)",
    "gaussian_knn": "Gaussian kNN, k = 16",
    "uniform_knn": "uniform kNN, k = 16",
}


@dataclass(frozen=True)
class RunSelection:
    """Which runs of a budget a user wants; None means what the budget says. `data`: texts as `NAME=PATH`."""

    budget: str
    models: tuple[str, ...] | None = None
    kernels: tuple[str, ...] | None = None
    seeds: int | None = None
    data: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Run:
    """One training and its evaluation.

    Attributes:
        key: its name in the results, unique in the experiment, as in "biweight/1000/seed 0".
        configuration: everything its outcome depends on, an instance of the experiment's `settings`. A stored record is
            kept only while this is equal.
        cost: expected time in any unit, for the time left.
        data: where the texts lie that the configuration names; no part of what is stored.
    """

    key: str
    configuration: Any
    cost: float = 1.0
    data: Mapping[str, str] = field(default_factory=dict)


def seed_by_seed(
    selection: RunSelection, budgets: Mapping[str, Any], seeds: Mapping[str, int], models: Iterable[str]
) -> list[Run]:
    """All models of a seed, then of the next: `run(model, seed)` of the settings of the budget."""
    numbers = range(selection.seeds or seeds[selection.budget])
    return [budgets[selection.budget].run(name, seed) for seed in numbers for name in selection.models or models]


@dataclass(frozen=True)
class RunContext:
    """Where a run works: `folder` for its checkpoints, `report(share, note)` for its progress in [0, 1], `device`."""

    folder: Path
    report: Callable[[float, str], None] = field(default=lambda share, note: None)
    device: str = "cpu"


@dataclass(frozen=True)
class Record:
    """A finished run: its configuration, its outcome, and what it was made with."""

    configuration: Any
    outcome: dict[str, Any]
    provenance: dict[str, Any]


class About(NamedTuple):
    """An experiment's title, and the papers and sections that it comes from."""

    title: str
    source: str


WITH_KERNELS = ("mosaic", "mosaic_v2")  # models whose kernel --kernels chooses


@dataclass(frozen=True)
class Experiment:
    """One experiment of `tessera reproduce`; `EXPERIMENTS` has them by name.

    Attributes:
        settings: the frozen dataclass of a run's configuration, with a field `seed`; `base.dataclass_io` reads and
            writes it, so its fields are numbers, text, tuples, mappings and such dataclasses.
        plan: the runs of a selection (see `runs`), in the order of their value: an interrupted command has done the
            first ones.
        execute: trains and evaluates; returns a JSON-ready outcome. After a kill it goes on from its checkpoint.
        tables: Markdown tables by heading: our numbers (mean over seeds, standard error) beside the paper's.
        plot: draws the figure into a file.
        models, kernels: the names that the user may choose from (empty: there is no such choice).
        published: how to start a training as published, which is no budget.
        takes_data: whether it reads texts that the user names.
        long: whether there is a budget "long" for a GPU.
        version: changes when old records can no longer stand beside new ones.
    """

    about: About
    settings: type
    plan: Callable[[RunSelection], list[Run]]
    execute: Callable[[Run, RunContext], dict[str, Any]]
    tables: Callable[[Mapping[str, Record]], dict[str, str]]
    plot: Callable[[Mapping[str, Record], Path], None]
    models: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    published: str = "The published settings stand beside ours in the table of settings; no command trains by them."
    takes_data: bool = False
    long: bool = False
    version: int = 1

    @property
    def budgets(self) -> tuple[str, ...]:
        """The names of its budgets."""
        return ("smoke", "cpu", "long") if self.long else ("smoke", "cpu")

    def runs(self, selection: RunSelection) -> list[Run]:
        """The runs of a selection, whose names are checked first.

        Raises `TesseraError`: an unknown budget, model or kernel, or an option that this experiment does not have.
        """
        advice = self.published if selection.budget == "full" else ""
        choices = "be one of " + ", ".join(self.budgets)
        expect(selection.budget in self.budgets, "reproduce", "--budget", choices, selection.budget, advice)
        no_data = "be left out: it makes its own examples"
        expect(self.takes_data or not selection.data, "reproduce", "--data", no_data, selection.data)
        models = _checked("models", self.models, selection.models)
        kernels = _checked("kernels", self.kernels, selection.kernels)
        have_kernels = kernels is None or models is None or any(model in WITH_KERNELS for model in models)
        needed = f"be left out, or --models name one of {', '.join(WITH_KERNELS)}, which have kernels"
        expect(have_kernels, "reproduce", "--kernels", needed, f"--models {' '.join(models or ())}")
        return self.plan(replace(selection, models=models, kernels=kernels))


def _checked(option: str, known: Sequence[str], names: Sequence[str] | None) -> tuple[str, ...] | None:
    """The `names` of an option, each once; None for None."""
    if names is None:
        return None
    expect(bool(known), "reproduce", f"--{option}", "be left out: there is no such choice", " ".join(names))
    for name in names:
        if name not in known:
            raise TesseraError(f"reproduce: unknown {option.removesuffix('s')} {name!r}. {did_you_mean(name, known)}")
    return tuple(dict.fromkeys(names))


# The papers, as the sources of experiments name them.
_ARMT, _MOSAICS, _V2 = "Associative Recurrent Memory Transformer", "Memory Mosaics", "Memory Mosaics at scale (v2)"
_KERNELS = "Sparse Attention as Compact Kernel Regression"
# What `tessera tasks` prints without importing any of them: that takes seconds.
LIBRARY = {
    "armt_language": About(
        "ARMT on language: bits per byte of each segment", f"{_ARMT}, appendix on language modeling"
    ),
    "associative_retrieval": About(
        "Associative retrieval: what a memory of fixed size recalls", f"{_ARMT}, section 3 and appendix A"
    ),
    "attention_profiles": About(
        "Attention profiles: where one block looks", f"{_MOSAICS}, appendix D, figures 14 to 16"
    ),
    "babilong": About("BABILong: facts hidden in long texts", f"{_ARMT}, section 4"),
    "document_qa": About(
        "Document questions: one of many documents holds the answer",
        f"{_V2}, section 5.2, tables 3, 4, 6 and 7; RULER, Hsieh et al. 2024",
    ),
    "induction": About(
        "Induction: one block of memories, and one or two of attention",
        f"{_MOSAICS}, section 3; the task of Bietti et al. 2023",
    ),
    "language_modeling": About(
        "Language models by depth and kernel", f"{_MOSAICS}, section 7; {_KERNELS}, section 4.1"
    ),
    "length_generalization": About(
        "Length generalisation: MQMTAR, sort, reverse", f"{_KERNELS}, section 4.3, tables 2, 6 and 7"
    ),
    "many_shot": About(
        "Many-shot classification: new classes from examples in the context",
        f"{_V2}, section 5.3, figures 3, 4, 10 and 11",
    ),
    "out_of_distribution": About(
        "Loss by position on text of another kind", f"{_MOSAICS}, section 7 and figure 8; {_KERNELS}, figure 5"
    ),
    "regbench": About(
        "RegBench: in-context learning of regular languages", f"{_KERNELS}, table 1; {_MOSAICS}, section 7 and table 3"
    ),
    "three_moons": About("Three moons", f"{_MOSAICS}, section 5 and appendix A, figures 4, 5 and 10"),
}


class Catalogue(Registry[Experiment | None]):
    """The library's experiments, imported from `tessera.papers.NAME.report` when they are asked for, and added ones."""

    def __init__(self, library: Mapping[str, About]) -> None:
        super().__init__("experiment")
        self.library = library
        self._entries = dict.fromkeys(library)  # None: not imported yet

    def about(self) -> dict[str, About]:
        """What each experiment is; imports none."""
        return {name: entry.about if entry else self.library[name] for name, entry in self._entries.items()}

    def __getitem__(self, name: str) -> Experiment:
        if name in self and self._entries[name] is None:
            self._entries[name] = importlib.import_module(f"tessera.papers.{name}.report").EXPERIMENT
        entry = super().__getitem__(name)
        assert entry is not None, "it is imported"
        return entry


EXPERIMENTS = Catalogue(LIBRARY)
