"""Recipe files as mappings: where they lie, what they extend, `key=value` changes. Nothing heavy is imported here."""

from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import tessera
from tessera.base.dataclass_io import shown
from tessera.base.errors import TesseraError, did_you_mean
from tessera.base.yaml_files import parse_yaml, read_yaml

SHIPPED = Path(tessera.__file__).parent / "recipes"
COMMAND_LINE = "command line"
KINDS = ("type", "name")  # the keys that say which other keys a section has
# By the names of different types. They stay when a model gets another type: models are compared at one size.
SIZES = (
    ("hidden_size", "n_embd", "d_model"),
    ("num_layers", "num_hidden_layers", "n_layer", "n_layers"),
    ("num_heads", "num_attention_heads", "n_head", "n_heads"),
    ("intermediate_size", "n_inner", "ffn_dim"),
)
_read_once = cache(read_yaml)


def find_recipe(path: str | Path) -> Path:
    """The file that `path` names: itself, `recipes/<path>.yaml` here, or a shipped one by its name.

    A shipped recipe is also named as `recipes/<name>.yaml`, unless the working directory has such a file of its own.
    """
    path = Path(path)
    shipped_name = path.stem if path == Path("recipes") / f"{path.stem}.yaml" else path
    for candidate in (path, Path("recipes") / f"{path}.yaml", SHIPPED / f"{shipped_name}.yaml"):
        if candidate.is_file():
            return candidate
    known = did_you_mean(path.stem, (file.stem for file in SHIPPED.glob("*.yaml")))
    raise TesseraError(f"recipe {path}: {'a folder' if path.is_dir() else 'no such file'}. {known}")


def recipe_mapping(file: Path) -> dict[str, Any]:
    """What `file` says over the recipe that it extends."""
    return _with_base(file, _load(file), ())


def apply_overrides(
    mapping: dict[str, Any], overrides: Sequence[str], problems: list[str]
) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Write `key=value` overrides into `mapping`, a section before its keys; returns the keys.

    Of a section that gets another `type` or `name` nothing else stays but `SIZES`: the keys are its own. Such sections
    are returned too, by their names.
    """
    anew: dict[str, dict[str, Any]] = {}
    keys, names = [], {override: override.partition("=")[0] for override in overrides}
    for override in sorted(overrides, key=lambda one: (names[one].count("."), not names[one].endswith(KINDS))):
        key, equals, text = override.partition("=")
        *parents, last = key.split(".")
        section: Any = mapping
        for parent in parents:
            if isinstance(section, dict) and section.get(parent) is None:  # a saved recipe says task: null
                section[parent] = {}
            section = section[parent] if isinstance(section, dict) else None
        try:
            value = parse_yaml(text, COMMAND_LINE, key)
        except TesseraError:
            value = text
        if not (key and equals and isinstance(section, dict)):
            problems.append(f"{COMMAND_LINE}: {override!r} must be an override key=value, such as training.steps=100.")
            continue
        if parents and last in KINDS and section.get(last, value) != value:
            for name in set(section).difference(*SIZES):
                del section[name]
            anew[".".join(parents)] = section
        section[last] = value
        keys.append(key)
    return [*keys, *anew], anew


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
            is_same = all(name not in value or value[name] == old.get(name) for name in KINDS)
            result[key] = _merged(old, value) if is_same else value
    return result


def _load(file: Path) -> dict[str, Any]:
    mapping = deepcopy(_read_once(file, "recipe")) if file.parent == SHIPPED else read_yaml(file, "recipe")
    if not isinstance(mapping, dict):
        raise TesseraError(f"{file}: recipe must be a mapping of keys to values; got {shown(mapping)}.")
    return mapping
