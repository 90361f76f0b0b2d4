"""What an experiment is: the runs of a budget, how one of them is done, and what is shown of all of them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tessera.base.errors import TesseraError, did_you_mean, expect
from tessera.base.registry import Registry

BUDGETS = ("smoke", "cpu", "full")
# Those that Sparse Attention as Compact Kernel Regression compares, in the order of its tables.
PAPER_KERNELS = (
    "gaussian",
    "sparsemax",
    "biweight",
    "triweight",
    "relumax",
    "normalized_relu",
    "gaussian_knn",
    "uniform_knn",
)


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


class Experiment(ABC):
    """One command of `tessera reproduce`; registered in `EXPERIMENTS`.

    Attributes:
        settings: the frozen dataclass of a run's configuration, with a field `seed`; `base.dataclass_io` reads and
            writes it, so its fields are numbers, text, tuples, mappings and such dataclasses.
        version: changes when old records can no longer stand beside new ones.
        models, kernels: the names that the user may choose from (empty: there is no such choice).
        takes_data: whether it reads texts that the user names.
    """

    title: ClassVar[str]
    source: ClassVar[str]
    settings: ClassVar[type]
    version: ClassVar[int] = 1
    models: ClassVar[tuple[str, ...]] = ()
    kernels: ClassVar[tuple[str, ...]] = ()
    takes_data: ClassVar[bool] = False

    @abstractmethod
    def runs(self, selection: RunSelection) -> list[Run]:
        """The runs of a selection, in the order of their value: an interrupted command has done the first ones."""

    def select_models(self, where: str, selection: RunSelection, default: Sequence[str] | None = None) -> list[str]:
        """The models that a selection asks for, for an experiment whose models have one kernel each.

        `default` (None: all) is the budget's choice. Raises `TesseraError` for unknown models, and for kernels.
        """
        select_names(where, "kernels", self.kernels, selection.kernels, ())
        return select_names(where, "models", self.models, selection.models, self.models if default is None else default)

    @abstractmethod
    def execute(self, run: Run, context: RunContext) -> dict[str, Any]:
        """Train and evaluate; returns a JSON-ready outcome. After a kill it goes on from its checkpoint."""

    @abstractmethod
    def tables(self, records: Mapping[str, Record]) -> dict[str, str]:
        """Markdown tables by heading: our numbers (mean over seeds, standard error) beside the paper's."""

    @abstractmethod
    def plot(self, records: Mapping[str, Record], path: Path) -> None:
        """Draw the figure."""


EXPERIMENTS: Registry[Experiment] = Registry("experiment")


def select_names(
    where: str, word: str, known: Sequence[str], names: Sequence[str] | None, default: Sequence[str]
) -> list[str]:
    """The `names` of an option `--{word}`, checked; `default` for None.

    Raises:
        TesseraError: a name that is not known, or an option that this experiment does not have.
    """
    if names is None:
        return list(default)
    expect(bool(known), where, f"--{word}", "be left out: there is no such choice", " ".join(names))
    for name in names:
        if name not in known:
            raise TesseraError(f"{where}: unknown {word.removesuffix('s')} {name!r}. {did_you_mean(name, known)}")
    return list(dict.fromkeys(names))
