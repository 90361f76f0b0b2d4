"""Recipe files: YAML to `Recipe`, with overrides, all problems at once."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tessera.base.arguments import explain_all
from tessera.base.dataclass_io import read_dataclass
from tessera.base.errors import TesseraError
from tessera.recipes.files import COMMAND_LINE, apply_overrides, find_recipe, recipe_mapping
from tessera.recipes.model_section import model_problems
from tessera.recipes.sections import Recipe


def read_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in `path` (a YAML file, or the name of a shipped one) changed by `key=value` overrides.

    Keys are dotted (`training.steps=10`), values are YAML. A recipe may begin with `extends: NAME`: then it holds what
    differs from that recipe (a file beside it, or one that `path` could name). Raises one `TesseraError` with a line
    for every problem, each naming the file (or the command line), the key, what was found and what is allowed.
    """
    file = find_recipe(path)
    mapping = recipe_mapping(file)
    problems: list[str] = []
    overridden = apply_overrides(mapping, overrides, problems)

    def report(key: str, message: str) -> None:
        ours = any(f"{key}.".startswith(f"{name}.") or name.startswith(f"{key}.") for name in overridden)
        where = COMMAND_LINE if ours else str(path)
        problems.append(f"{where}: {key} {message}")

    mapping.setdefault("name", file.stem)
    recipe = read_dataclass(Recipe, mapping, report)
    if isinstance(mapping.get("model"), dict) and isinstance(mapping["model"].get("type"), str):
        for message in model_problems(mapping["model"]):
            report(*message.split(" ", 1))
    if problems:
        raise TesseraError("\n".join(problems))
    if recipe.training.curriculum:
        return replace(recipe, training=replace(recipe.training, steps=recipe.training.curriculum_steps))
    return recipe


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """Every setting of `recipe`, defaults included, as plain YAML values."""
    plain = asdict(recipe)
    plain["training"]["betas"] = list(recipe.training.betas)
    return plain


explain_all(globals(), ("read_recipe", "recipe_to_dict"))
