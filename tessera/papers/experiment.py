"""What an experiment is: the runs of a budget, how one of them is done, and what is shown of all of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from tessera.base.errors import TesseraError, did_you_mean, expect

BUDGETS = ("smoke", "cpu")
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
        return (*BUDGETS, "long") if self.long else BUDGETS

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
