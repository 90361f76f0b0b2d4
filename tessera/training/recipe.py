"""Recipe files: YAML to `Recipe`, with overrides, all problems at once."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import tessera
from tessera.errors import TesseraError, did_you_mean
from tessera.training.model_section import model_problems
from tessera.training.sections import Recipe
from tessera.typed import read_dataclass
from tessera.yaml_files import parse_yaml, read_yaml

SHIPPED = Path(tessera.__file__).parent / "recipes"
COMMAND_LINE = "command line"


def read_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in `path` (a YAML file, or the name of a shipped one) changed by `key=value` overrides.

    Keys are dotted (`training.steps=10`), values are YAML. A recipe may begin with `extends: NAME`: then it holds what
    differs from that recipe (a file beside it, or one that `path` could name). Raises one `TesseraError` with a line
    for every problem, each naming the file (or the command line), the key, what was found and what is allowed.
    """
    file = find_recipe(path)
    mapping = _with_base(file, _load(file), ())
    problems: list[str] = []
    overridden = _apply(mapping, overrides, problems)

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


def find_recipe(path: str | Path) -> Path:
    """The file that `path` names: itself, `recipes/<path>.yaml` here, or a shipped one by its name.

    A shipped recipe is also named as `recipes/<name>.yaml`, unless the working directory has such a file of its own.
    """
    path = Path(path)
    shipped_name = path.stem if path == Path("recipes") / f"{path.stem}.yaml" else path
    for candidate in (path, Path("recipes") / f"{path}.yaml", SHIPPED / f"{shipped_name}.yaml"):
        if candidate.is_file():
            return candidate
    names = (file.stem for file in SHIPPED.glob("*.yaml"))
    raise TesseraError(f"recipe {path}: no such file. {did_you_mean(path.stem, names)}")


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """Every setting of `recipe`, defaults included, as plain YAML values."""
    plain = asdict(recipe)
    plain["training"]["betas"] = list(recipe.training.betas)
    return plain


def _with_base(file: Path, mapping: dict[str, Any], above: tuple[Path, ...]) -> dict[str, Any]:
    """`mapping` over the recipe that its `extends` names; a file is looked for beside this one first."""
    name = mapping.pop("extends", None)
    if name is None:
        return mapping
    if not isinstance(name, str):
        raise TesseraError(f"{file}: extends must name a recipe; got {name!r}.")
    beside = file.parent / f"{name}.yaml"
    base = beside if beside.is_file() else find_recipe(name)
    if base.resolve() in (*above, file.resolve()):
        raise TesseraError(f"{file}: extends must not lead back to a recipe that extends this one; got {name!r}.")
    inherited = _with_base(base, _load(base), (*above, file.resolve()))
    inherited.pop("name", None)
    return _merged(inherited, mapping)


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes`, section by section; one of another `type` or `name` replaces the base's."""
    result = dict(base)
    for key, value in changes.items():
        old = base.get(key)
        result[key] = value
        if isinstance(old, dict) and isinstance(value, dict):
            is_same = all(name not in value or value[name] == old.get(name) for name in ("type", "name"))
            result[key] = _merged(old, value) if is_same else value
    return result


def _load(file: Path) -> dict[str, Any]:
    mapping = read_yaml(file, "recipe")
    if not isinstance(mapping, dict):
        raise TesseraError(f"{file}: recipe must be a mapping of keys to values; got {mapping!r}.")
    return mapping


def _apply(mapping: dict[str, Any], overrides: Sequence[str], problems: list[str]) -> list[str]:
    """Write `key=value` overrides into `mapping`; returns the keys."""
    keys = []
    for override in overrides:
        key, equals, text = override.partition("=")
        *parents, last = key.split(".")
        place: Any = mapping
        for parent in parents:
            place = place.setdefault(parent, {}) if isinstance(place, dict) else None
        try:
            value = parse_yaml(text, COMMAND_LINE, key)
        except TesseraError:
            value = text
        if not (key and equals and isinstance(place, dict)):
            problems.append(f"{COMMAND_LINE}: {override!r} must be an override key=value, such as training.steps=100.")
            continue
        place[last] = value
        keys.append(key)
    return keys
