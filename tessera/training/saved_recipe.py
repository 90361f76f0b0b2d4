"""The recipe that a run keeps in its folder: written, recognised, compared."""

from pathlib import Path
from typing import Any

import yaml

from tessera.base.dataclass_io import read_dataclass
from tessera.base.errors import TesseraError
from tessera.base.yaml_files import parse_yaml
from tessera.recipes.recipe import recipe_to_dict
from tessera.recipes.sections import Recipe

RECIPE = "recipe.yaml"
# What changes no weight: they may differ when a run goes on.
RESUMABLE_KEYS = {
    f"training.{name}" for name in ("log_every", "evaluate_every", "checkpoint_every", "keep_checkpoints", "report_to")
}
STEPS = "training.steps"
SECTIONS = {"name", "model", "data", "tokenizer", "training", "seed"}


def saved_text(recipe: Recipe) -> str:
    """Every setting, defaults included; of a task the tokenizer is its own, and nothing is said of one."""
    plain = recipe_to_dict(recipe)
    return yaml.safe_dump({**plain, "tokenizer": {}} if recipe.data.task else plain, sort_keys=False)


def is_saved_recipe(path: Path) -> bool:
    """Does `path` hold a recipe with every section, as runs write it? People leave out what has a default."""
    content = _read(path)[1]
    sections = isinstance(content, dict) and content.keys() >= SECTIONS
    return sections and all(isinstance(content[name], dict) for name in ("model", "data", "tokenizer", "training"))


def equals_saved(path: Path, recipe: Recipe) -> bool:
    """Does the saved recipe hold the very settings of `recipe`? Keys count as in `require_same`."""
    return _completed(_read(path)[1]) == recipe_to_dict(recipe)


def saved_steps(run: Path) -> int | None:
    """The steps that the run in this folder was begun with, if it says."""
    content = _read(run / RECIPE)[1]
    steps = content.get("training", {}).get("steps") if is_saved_recipe(run / RECIPE) else None
    return steps if isinstance(steps, int) else None


def is_machine_written(path: Path) -> bool:
    """Is the saved recipe, byte for byte, what YAML's writer makes of it? Comments and other layouts are a person's."""
    text, content = _read(path)
    return is_saved_recipe(path) and text == yaml.safe_dump(content, sort_keys=False)


def require_same(run: Path, recipe: Recipe) -> None:
    """Raise `TesseraError` unless the run's recipe says what `recipe` says, naming the first key that differs.

    Keys that a later release has added count with their defaults, and those that it has dropped do not. Intervals may
    differ, and there may be more steps.
    """
    before, now = _flat(_completed(_read(run / RECIPE)[1])), _flat(recipe_to_dict(recipe))
    is_longer = isinstance(before.get(STEPS), int) and now[STEPS] > before[STEPS]
    fixed = (before.keys() | now.keys()) - RESUMABLE_KEYS - ({STEPS} if is_longer else set())
    differing = [key for key in sorted(fixed) if before.get(key) != now.get(key)]
    if differing:
        key = differing[0]
        more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
        raise TesseraError(
            f"{run}: holds a run of another recipe; {key} is {before.get(key)!r} there and {now.get(key)!r} here{more}."
            " Use another --output, or --overwrite."
        )


def _completed(content: Any) -> Any:
    """A saved recipe with all keys of today and no others; as it is where it cannot be read."""
    complete = read_dataclass(Recipe, content, lambda key, message: None)
    return content if complete is None else recipe_to_dict(complete)


def _read(path: Path) -> tuple[str, Any]:
    """(text, content); both empty when it is not there or no YAML."""
    try:
        text = path.read_text(encoding="utf-8")
        return text, parse_yaml(text, str(path))
    except (OSError, ValueError):
        return "", None


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {prefix: value}
    return {
        key: leaf for name, item in value.items() for key, leaf in _flat(item, f"{prefix}.{name}".strip(".")).items()
    }
