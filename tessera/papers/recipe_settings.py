"""What settings have in common whose training is a recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tessera.base.dataclass_io import from_json, read_dataclass, to_json
from tessera.base.locks import folder_held
from tessera.recipes.recipe import read_recipe, recipe_to_dict
from tessera.recipes.sections import Recipe
from tessera.training.folder import RESULT
from tessera.training.loop import Report, unreported
from tessera.training.run import train

_read = cache(read_recipe)  # one process makes the list of runs several times


def recipe_mapping(name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """A shipped recipe with `key=value` overrides, complete, as plain values."""
    return to_json(recipe_to_dict(_read(name, tuple(overrides))))


def overrides_of(sections: Mapping[str, Any]) -> list[str]:
    """The `section.key=value` of each value; a text stands for a whole section."""
    overrides = []
    for section, values in sections.items():
        keys = {section: values} if isinstance(values, str) else {f"{section}.{key}": values[key] for key in values}
        overrides += [f"{key}={value}" for key, value in keys.items()]
    return overrides


def trained(recipe: Recipe, folder: Path, report: Report = unreported) -> Path:
    """The folder of the recipe's run, trained unless it is; a training that was killed goes on.

    The first run that needs it trains it; others that do at the same time wait.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with folder_held(folder):
        if not (folder / RESULT).is_file():
            train(recipe, folder, resume=True, progress=False, report=report)
    return folder


class RecipeSettings:
    """Base of frozen dataclasses with a field `recipe`, completed so that new keys of recipes orphan no record."""

    recipe: dict[str, Any]

    def __post_init__(self) -> None:
        complete = read_dataclass(Recipe, self.recipe, lambda key, message: None)
        if complete is not None:
            object.__setattr__(self, "recipe", to_json(recipe_to_dict(complete)))

    @property
    def seed(self) -> int:
        """Of the weights and of the order of the text."""
        return self.recipe["seed"]

    @property
    def context(self) -> int:
        """Tokens of a sequence in training."""
        return self.recipe["data"]["context"]

    @property
    def tokens(self) -> int:
        """Tokens seen in training."""
        training = self.recipe["training"]
        return training["steps"] * training["batch_size"] * self.context

    def read_recipe(self, data: str | None = None) -> Recipe:
        """The recipe; `data` is where the text lies that the settings name."""
        recipe = from_json(Recipe, self.recipe, "recipe")
        return recipe if data is None else replace(recipe, data=replace(recipe.data, source=data))
