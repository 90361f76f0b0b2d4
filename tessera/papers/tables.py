"""What tables and figures are made of: means with standard errors, Markdown, an empty figure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from tessera.tasks.task import Estimate, estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def markdown(headings: Sequence[object], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def over_seeds(values: Sequence[Sequence[float]]) -> Estimate:
    """Of each seed's (mean, standard error over examples, ...) the mean and its standard error over seeds.

    A single seed keeps its standard error over examples.
    """
    if len(values) == 1:
        mean, error = values[0][:2]
        return Estimate(mean, error, 1)
    return mean_of([value[0] for value in values])


def mean_of(values: Sequence[float]) -> Estimate:
    """The mean of numbers and its standard error; not a number for a single one."""
    return estimate(torch.tensor(values, dtype=torch.float64))


def with_error(one: Estimate, form: str = ".2f") -> str:
    """A cell: `mean ± standard error`, without the error where there is none."""
    return f"{one.mean:{form}}" if one.standard_error != one.standard_error else f"{one.mean:{form}} ± {one[1]:{form}}"


def settings_table(ours: Mapping[str, Any], published: Mapping[str, Any]) -> str:
    """Each setting of `ours` beside the paper's (`-` where it says nothing)."""
    rows = [[name, _cell(value), _cell(published.get(name, "-"))] for name, value in ours.items()]
    return markdown(["setting", "here", "paper"], rows)


def spread(values: Iterable[Any]) -> Any:
    """One setting over several runs: the value, or the smallest and the largest."""
    distinct = sorted(set(values))
    return distinct[0] if len(distinct) == 1 else f"{_cell(distinct[0])} to {_cell(distinct[-1])}"


def _cell(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    return str(value)


def new_figure(width: float, height: float) -> "Figure":
    """A figure of so many inches, drawn without a window."""
    from matplotlib.figure import Figure  # half a second, and most commands draw nothing

    return Figure(figsize=(width, height), layout="constrained")
