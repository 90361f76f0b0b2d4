"""A grid of recipes: every combination of the values that overrides list, trained one after another."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from tessera.base.errors import TesseraError, first_line
from tessera.base.files import write_text_atomically, writing
from tessera.evaluation.report import short_names
from tessera.recipes.recipe import read_recipe
from tessera.recipes.sections import Recipe
from tessera.training.folder import RECIPE, RESULT, equals_saved, is_run
from tessera.training.loop import NotFinite
from tessera.training.run import train

TABLE = "sweep.json"
BRACKETS = {"[": "]", "{": "}", "(": ")"}


@dataclass(frozen=True)
class Point:
    """One combination: `overrides` as `key=value`; `values` are those of the keys that vary, in their order."""

    overrides: tuple[str, ...]
    values: tuple[tuple[str, str], ...]

    @property
    def label(self) -> str:
        """The varying values by the last parts of their keys."""
        return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in self.values) or "all"

    @property
    def folder(self) -> str:
        """The label as the name of a folder; a digest keeps apart what differs in other characters."""
        plain = re.sub(r"[^A-Za-z0-9.=_+-]+", "_", self.label)
        if plain == self.label.replace(", ", "_") and len(plain) <= 80:
            return plain
        return f"{plain[:80]}-{hashlib.sha256(self.label.encode()).hexdigest()[:8]}"


@dataclass(frozen=True)
class Outcome:
    """One run of a sweep. `problem`: why it did not end, else ""; then the numbers are None.

    validation_loss: at the end, nats per token. validation_bits_per_byte: the same loss, comparable between tokenizers;
    None for questions. validation_exact_match: the share of right answers; None for text.
    """

    values: dict[str, str]
    folder: str
    parameters: int | None = None
    tokens: int | None = None
    validation_loss: float | None = None
    validation_bits_per_byte: float | None = None
    validation_exact_match: float | None = None
    tokens_per_second: float | None = None
    problem: str = ""

    @property
    def decides(self) -> float | None:
        """What is compared: the share of right answers, or of text the loss."""
        return self.validation_loss if self.validation_exact_match is None else self.validation_exact_match


@dataclass(frozen=True)
class Sweep:
    """The runs of `recipe` at every point of a grid, each in a folder of its own under `output`."""

    recipe: str
    points: tuple[Point, ...]
    recipes: tuple[Recipe, ...]
    output: Path

    @classmethod
    def read(cls, recipe: str, overrides: Sequence[str], output: Path | None = None) -> "Sweep":
        """The sweep of a recipe (a file, or the name of a shipped one); `output` is runs/sweeps/NAME by default.

        Raises `TesseraError`: a mistake in the recipe or in an override, in any of the runs.
        """
        points = tuple(grid(overrides))
        recipes = tuple(read_recipe(recipe, point.overrides) for point in points)
        return cls(recipe, points, recipes, output or Path("runs") / "sweeps" / recipes[0].name)

    def run(self, begin: Callable[[int, Point], None] = lambda number, point: None) -> list[Outcome]:
        """Train what is not trained yet and return all outcomes; a run that was stopped goes on.

        `sweep.json` in the output folder is written anew after each. `begin(number, point)` is called before a
        training. One whose loss is not finite is noted as such, and the next begins.
        Raises `TesseraError`: data that cannot be used, or a folder that holds other things.
        """
        outcomes: list[Outcome] = []
        for number, (point, recipe) in enumerate(zip(self.points, self.recipes)):
            folder = self.output / point.folder
            problem = ""
            if not is_done(folder, recipe):
                begin(number, point)
                try:
                    train(recipe, folder, resume=True)
                except NotFinite as error:
                    problem = first_line(error)
            outcomes.append(_outcome(point, folder, problem))
            self._write(outcomes)
        return outcomes

    def _write(self, outcomes: Sequence[Outcome]) -> None:
        with writing(self.output, "output folder", "Use --output."):
            text = json.dumps(self.as_json(outcomes), indent=1, allow_nan=False)
            write_text_atomically(self.output / TABLE, text + "\n")

    def as_json(self, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        """The recipe with what all runs share, one mapping per run, and the folder of the best."""
        winner = best(outcomes)
        return {
            "recipe": self.recipe,
            "shared": dict(override.split("=", 1) for override in self._shared()),
            "runs": [vars(outcome) for outcome in outcomes],
            "best": None if winner is None else outcomes[winner].folder,
        }

    def _shared(self) -> list[str]:
        varying = {key for key, _ in self.points[0].values}
        return [override for override in self.points[0].overrides if override.split("=", 1)[0] not in varying]


def is_done(folder: Path, recipe: Recipe) -> bool:
    """Has a run of this very recipe ended in `folder`?"""
    return (folder / RESULT).is_file() and equals_saved(folder / RECIPE, recipe)


def runs_of_sweep(folder: Path) -> list[Path]:
    """The runs in the folder of a sweep; none where `folder` is another."""
    return sorted(filter(is_run, folder.iterdir())) if (folder / TABLE).is_file() else []


def run_names(folders: Sequence[Path]) -> list[str]:
    """Short names of runs: those of their folders, or the settings by which a sweep named them where these are long."""
    names = short_names([str(folder) for folder in folders])
    settings = [_settings(folder) for folder in folders]
    is_cut = any("…" in name for name in names)
    return settings if is_cut and all(settings) and len(set(settings)) == len(settings) else names


def _settings(folder: Path) -> str:
    """What a sweep varied, in the run that it made in `folder`; empty of other runs."""
    try:
        runs = json.loads((folder.parent / TABLE).read_text(encoding="utf-8"))["runs"]
        values = next(run["values"] for run in runs if Path(run["folder"]).name == folder.name)
        return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in values.items())
    except (OSError, ValueError, TypeError, LookupError, AttributeError, StopIteration):  # no table, or a changed one
        return ""


def best(outcomes: Sequence[Outcome]) -> int | None:
    """The place of the most right answers, then of the lowest validation loss; None when no run has one."""
    known = {
        index: (-(outcome.validation_exact_match or 0.0), outcome.validation_loss)
        for index, outcome in enumerate(outcomes)
        if outcome.validation_loss is not None
    }
    return min(known, key=lambda index: known[index], default=None)


def over_seeds(outcomes: Sequence[Outcome]) -> list[tuple[dict[str, str], list[float]]]:
    """What `decides` in each combination of the values other than the seed, in the order of the runs."""
    groups: dict[tuple[tuple[str, str], ...], list[float]] = {}
    for outcome in outcomes:
        key = tuple((name, value) for name, value in outcome.values.items() if name != "seed")
        if outcome.decides is not None:
            groups.setdefault(key, []).append(outcome.decides)
    return [(dict(key), numbers) for key, numbers in groups.items()]


def _outcome(point: Point, folder: Path, problem: str) -> Outcome:
    values = dict(point.values)
    if problem:
        return Outcome(values, str(folder), problem=problem)
    try:
        result = json.loads((folder / RESULT).read_text(encoding="utf-8"))["result"]
        numbers = {name: result[name] for name in Outcome.__dataclass_fields__ if name in result and name != "folder"}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise TesseraError(f"{folder / RESULT}: cannot be read as a run's result ({error!r}). Delete it.") from None
    return Outcome(values, str(folder), **numbers)


def grid(overrides: Sequence[str]) -> list[Point]:
    """Every combination of `key=value,value,...`; the last key varies fastest. Commas in brackets or quotes stay.

    Raises `TesseraError`: what is no override, a key that occurs twice, or an empty or repeated value.

    >>> [point.overrides for point in grid(["training.steps=10", "seed=0,1"])]
    [('training.steps=10', 'seed=0'), ('training.steps=10', 'seed=1')]
    """
    choices: dict[str, list[str]] = {}
    for override in overrides:
        key, equals, text = override.partition("=")
        if not (key and equals):
            raise TesseraError(f"sweep: {override!r} must be key=value or key=value,value, such as seed=0,1.")
        if key in choices:
            raise TesseraError(f"sweep: {key} must be given once; got it twice. List its values: {key}=A,B.")
        values = split(text)
        if (len(values) > 1 and "" in values) or len(set(values)) < len(values):
            raise TesseraError(f"sweep: {key} must list different values; got {text!r}.")
        choices[key] = values
    varying = [key for key, values in choices.items() if len(values) > 1]
    points = []
    for combination in product(*choices.values()):
        chosen = dict(zip(choices, combination))
        points.append(
            Point(
                tuple(f"{key}={value}" for key, value in chosen.items()), tuple((key, chosen[key]) for key in varying)
            )
        )
    return points


def split(text: str) -> list[str]:
    """The values between the commas of `text` that stand in no bracket and no quotes.

    >>> split("a,{name: knn, k: 32},'x,y'")
    ['a', '{name: knn, k: 32}', "'x,y'"]
    """
    values, closing, quote = [""], [], ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in BRACKETS:
            closing.append(BRACKETS[character])
        elif closing and character == closing[-1]:
            closing.pop()
        elif character == "," and not closing:
            values.append("")
            continue
        values[-1] += character
    return [value.strip() for value in values]
