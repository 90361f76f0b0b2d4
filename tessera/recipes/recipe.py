"""Recipe files: YAML to `Recipe`, with overrides, all problems at once."""

import inspect
import json
import textwrap
from collections.abc import Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from tessera.base.arguments import explain_all
from tessera.base.dataclass_io import MEANING, describe, read_dataclass
from tessera.base.errors import TesseraError
from tessera.models.registry import strict_configs
from tessera.models.strict_config import StrictConfig
from tessera.models.transformer import transformer_config
from tessera.recipes.model_section import keep_fitting_sizes, model_problems
from tessera.recipes.recipe_files import COMMAND_LINE, apply_overrides, find_recipe, recipe_mapping
from tessera.recipes.sections import Recipe

# Of what is a mapping, for those who gave one of its values in its place.
EXAMPLES = {"model": "{type: memory_mosaic}", "data": "{source: stories}", "data.task": "{name: babilong}"}
EXAMPLES |= {"tokenizer": "{type: gpt2}", "training": "{steps: 100}"}


def read_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in `path` (a YAML file, or the name of a shipped one) changed by `key=value` overrides.

    Keys are dotted (`training.steps=10`), values are YAML. A recipe may begin with `extends: NAME`: then it holds what
    differs from that recipe (a file beside it, or one that `path` could name). A section that the command line gives
    another `type` or `name` keeps no other key of the file's but a model's sizes, where the new type has them. Raises
    one `TesseraError` with a line for every problem, each naming the file (or the command line), the key, what was
    found and what is allowed.
    """
    file = find_recipe(path)
    mapping = recipe_mapping(file)
    problems: list[str] = []
    overridden, anew = apply_overrides(mapping, overrides, problems)
    for name, section in anew.items():
        if name.rpartition(".")[2] in ("model", "base") and isinstance(section.get("type"), str):
            keep_fitting_sizes(section, [key.removeprefix(f"{name}.") for key in overridden])

    def report(key: str, message: str) -> None:
        stem = key.rstrip(":")
        ours = any(f"{stem}.".startswith(f"{name}.") or name.startswith(f"{stem}.") for name in overridden)
        where = COMMAND_LINE if ours else str(path)
        example = f" For example {EXAMPLES[key]}." if key in EXAMPLES and "a mapping" in message else ""
        problems.append(f"{where}: {key} {message}{example}")

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


WIDTH = 100
EXTENDS = """  extends: text; default none
      a recipe whose keys this one changes: a shipped one, or a file beside it, without .yaml. A section with another
      `type` or `name` takes the place of the old one, on the command line too (model.type=transformer), where the
      width, the layers and the heads stay"""
BASE = """  model.base: a mapping or text; required
      the model that reads the segments: a model section of its own, such as {type: memory_mosaic, num_layers: 2}, or
      the folder of a model or run, whose weights the training starts from"""


def recipe_help() -> str:
    """The keys of `Recipe` and its sections, then the fields of each model type of this library."""
    lines = ["Keys of a recipe (YAML), with type, default and meaning. On the command line: key=value.", "", EXTENDS]
    lines += _keys(Recipe, "")
    for name, fields_of in _model_types().items():
        lines += ["", f"model: {{type: {name}, ...}}", *fields_of]
    return "\n".join([*lines, "", "Any other model type of transformers is written with its own fields."])


def _keys(cls: type, prefix: str) -> list[str]:
    hints, lines = get_type_hints(cls), []
    for item in fields(cls):
        if is_dataclass(hints[item.name]):
            lines += ["", f"{prefix}{item.name}: {item.metadata[MEANING]}", *_keys(hints[item.name], f"{item.name}.")]
        else:
            lines.append(f"  {prefix}{item.name}: {describe(hints[item.name])}; {_default(item)}")
            lines += textwrap.wrap(item.metadata[MEANING], WIDTH, initial_indent="      ", subsequent_indent="      ")
    return lines


def _default(item: Any) -> str:
    if item.default is MISSING and item.default_factory is MISSING:
        return "required" if item.name != "name" else "from the file"
    return f"default {json.dumps(item.default_factory() if item.default is MISSING else item.default)}"


def _model_types() -> dict[str, list[str]]:
    """Lines by model type: the meanings from its docstring, then each field with type and default."""
    result = {}
    for config in strict_configs():
        own = [cls for cls in reversed(config.__mro__) if issubclass(cls, StrictConfig)]
        hints = {name: hint for cls in own for name, hint in inspect.get_annotations(cls).items()}
        defaults = {item.name: _default(item) for item in fields(config) if item.name in hints}
        lines = {name: f"  model.{name}: {describe(hints[name])}; {default}" for name, default in defaults.items()}
        shown = [BASE if name == "base_config" else line for name, line in lines.items()]
        result[config.model_type] = [*_indented(config), *shown]
    parameters = inspect.signature(transformer_config).parameters.values()
    shown = [
        f"  model.{parameter.name}: {describe(parameter.annotation)}; default {json.dumps(parameter.default)}"
        for parameter in parameters
    ]
    return {**result, "transformer": [*_indented(transformer_config), *shown]}


def _indented(documented: Any) -> list[str]:
    return textwrap.indent(inspect.getdoc(documented) or "", "  ").splitlines()


explain_all(globals(), ("read_recipe", "recipe_to_dict"))
