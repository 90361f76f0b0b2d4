"""A grid of recipes: every combination of the values that overrides list, trained one after another."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tessera.base.dataclass_io import to_json
from tessera.base.errors import TesseraError, first_line, is_out_of_memory
from tessera.base.files import write_text_atomically, writing
from tessera.evaluation.display import short_names
from tessera.recipes.recipe import read_recipe
from tessera.recipes.sections import Recipe
from tessera.training.folder import RECIPE, RESULT, equals_saved, expect_same_inputs, is_run
from tessera.training.loop import NotFinite
from tessera.training.run import train
from tessera.training.staged_data import open_data

TABLE, NO_MEMORY = "sweep.json", "out of memory"
LOSS, RIGHT, BITS = "validation_loss", "validation_exact_match", "validation_bits_per_byte"
NUMBERS = ("parameters", "tokens", LOSS, BITS, RIGHT, "tokens_per_second")  # of a run's result
MADE = ("commit", "hardware", "finished")  # of its provenance


class Point(NamedTuple):
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


class Sweep(NamedTuple):
    """The runs of `recipe` at every point of a grid, each in a folder of its own under `output`."""

    recipe: str
    points: list[Point]
    recipes: list[Recipe]
    output: Path

    @classmethod
    def read(cls, recipe: str, overrides: Sequence[str], output: Path | None = None) -> "Sweep":
        """The sweep of a recipe (a file, or the name of a shipped one); `output` is runs/sweeps/NAME by default.

        Points that are one recipe, such as 1e-3 and 0.001, are one run, by the first of their names.
        Raises `TesseraError`: a mistake in the recipe or in an override, in any of the runs.
        """
        points, recipes = [], []
        for point in grid(overrides):
            if (read := read_recipe(recipe, point.overrides)) not in recipes:
                points.append(point)
                recipes.append(read)
        return cls(recipe, points, recipes, output or Path("runs") / "sweeps" / recipes[0].name)

    def run(self, begin: Callable[[int, Point], None] = lambda number, point: None) -> dict[str, Any]:
        """Train what is not trained yet; a run that was stopped goes on, one that diverged does not. Returns what
        `sweep.json` holds.

        That is the recipe, `shared`: the overrides of all runs, `runs`: see `outcome`, and the folder of the `best`.
        The file is written anew after each run. `begin(number, point)` is called before a training. One whose loss is
        not finite, or that needs more memory than there is, is noted as such, and the next begins. Where there was too
        little memory the next call tries again.
        Raises `TesseraError`: data that cannot be used, or a folder that holds other things.
        """
        varying = {key for key, _ in self.points[0].values}
        shared = dict(override.split("=", 1) for override in self.points[0].overrides)
        table: dict[str, Any] = {
            "recipe": self.recipe,
            "shared": {key: value for key, value in shared.items() if key not in varying},
            "runs": [],
            "best": None,
        }
        earlier = [_row(self.output / point.folder) for point in self.points]
        for number, (point, recipe) in enumerate(zip(self.points, self.recipes)):
            folder, problem = self.output / point.folder, ""
            is_same = equals_saved(folder / RECIPE, recipe)
            if is_ended := is_same and (folder / RESULT).is_file():
                expect_same_inputs(folder, open_data(recipe, folder, saved_tokenizer=True))  # one table, one text
            elif is_same:
                problem = str(earlier[number].get("problem", ""))
            if NO_MEMORY in problem or not (problem or is_ended):
                problem = ""
                begin(number, point)
                try:
                    train(recipe, folder, resume=True)
                except (NotFinite, MemoryError, RuntimeError) as error:
                    if not (isinstance(error, NotFinite) or is_out_of_memory(error)):
                        raise
                    problem = first_line(error) if isinstance(error, NotFinite) else f"{NO_MEMORY}: {first_line(error)}"
            table["runs"].append(outcome(point, folder, problem))
            winner = best(table["runs"])
            table["best"] = None if winner is None else table["runs"][winner]["folder"]
            with writing(self.output, "output folder", "Use --output."):
                rows = table["runs"] + [row for row in earlier[number + 1 :] if row]  # what a kill must not lose
                text = json.dumps({**table, "runs": rows}, indent=1, allow_nan=False)
                write_text_atomically(self.output / TABLE, text + "\n")
        return table


def outcome(point: Point, folder: Path, problem: str) -> dict[str, Any]:
    """One run of a sweep: the `values` that vary, its `folder`, `problem`: why it did not end, else "", and numbers.

    These are `NUMBERS` of its result and `MADE` of its provenance. What there is not is None: all of a run that did not
    end, of questions the bits, of text the matches.
    Raises `TesseraError`: the folder holds no result.
    """
    numbers, made = {}, {}
    try:
        if not problem:
            record = json.loads((folder / RESULT).read_text(encoding="utf-8"))
            numbers, made = record["result"], record.get("provenance", {})
        known = to_json({name: numbers.get(name) for name in NUMBERS} | {name: made.get(name) for name in MADE})
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise TesseraError(f"{folder / RESULT}: cannot be read as a run's result ({reason}). Delete it.") from None
    return {"values": dict(point.values), "folder": str(folder), **known, "problem": problem}


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
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in _row(folder).get("values", {}).items())


def _row(folder: Path) -> dict[str, Any]:
    """What the table of the sweep beside `folder` says of the run in it; empty where there is none."""
    try:
        runs = json.loads((folder.parent / TABLE).read_text(encoding="utf-8"))["runs"]
        return next({**run, "values": dict(run["values"])} for run in runs if Path(run["folder"]).name == folder.name)
    except (OSError, ValueError, TypeError, LookupError, StopIteration, RecursionError):  # no table, or a changed one
        return {}


def best(runs: Sequence[dict[str, Any]]) -> int | None:
    """The number of the run with most right answers, then with the lowest validation loss; None when none has one."""
    known = {index: (-(run[RIGHT] or 0.0), _loss(run)) for index, run in enumerate(runs) if run[LOSS] is not None}
    return min(known, key=lambda index: known[index], default=None)


def over_seeds(runs: Sequence[dict[str, Any]]) -> list[tuple[dict[str, str], list[float]]]:
    """What is compared (right answers, or of text the loss) in each combination of the values other than the seed."""
    groups: dict[tuple[tuple[str, str], ...], list[float]] = {}
    for run in runs:
        key = tuple((name, value) for name, value in run["values"].items() if name != "seed")
        if run[LOSS] is not None:
            groups.setdefault(key, []).append(_loss(run) if run[RIGHT] is None else run[RIGHT])
    return [(dict(key), numbers) for key, numbers in groups.items()]


def _loss(run: dict[str, Any]) -> float:
    """In bits per byte, of questions in nats per token: tokens of several tokenizers are not the same."""
    return run[LOSS] if run.get(BITS) is None else run[BITS]


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
        if "" in values[1:] or text.endswith(",") or len(set(values)) < len(values):
            raise TesseraError(f"sweep: {key} must list different values; got {text!r}.")
        choices[key] = values
    varying = [key for key, values in choices.items() if len(values) > 1]
    chosen = [dict(zip(choices, values)) for values in product(*choices.values())]
    return [
        Point(
            tuple(f"{key}={value}" for key, value in combination.items()),
            tuple((key, combination[key]) for key in varying),
        )
        for combination in chosen
    ]


def split(text: str) -> list[str]:
    """The values between the commas of `text`, which is read as what stands in a list of YAML.

    >>> split("a,{name: knn, k: 32},'x,y'")
    ['a', '{name: knn, k: 32}', "'x,y'"]
    """
    if "," not in text:
        return [text]
    try:
        listed = yaml.compose(f"[{text}]", Loader=yaml.SafeLoader)
    except yaml.YAMLError:  # such as nothing between two commas
        return ["", ""]
    assert listed is not None, "it is a list"
    return [text[value.start_mark.index - 1 : value.end_mark.index - 1] for value in listed.value]
