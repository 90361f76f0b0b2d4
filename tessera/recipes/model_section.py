"""From a recipe's model section to a model configuration and a model.

A section names a model type and any fields of its configuration. `tessera.models.small_models` starts from the other
end, as experiments do: from the size of a transformer, for which it chooses the fields of every model. Both make the
model of a configuration by `untrained_model`.
"""

import inspect
from collections.abc import Collection
from dataclasses import fields
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tessera.base.errors import TesseraError, did_you_mean, expect
from tessera.base.plugins import ADVICE
from tessera.base.random_numbers import random_numbers_kept
from tessera.data.encoding import num_ids
from tessera.data.tokenizers import vocabulary_size
from tessera.models import MODELS
from tessera.models.recurrence import SegmentedConfig
from tessera.models.registry import ModelEntry
from tessera.models.saving.loading import load_config, load_model
from tessera.models.sizes import meta_model
from tessera.models.small_models import untrained_model
from tessera.models.strict_config import StrictConfig
from tessera.models.transformer import context_limit
from tessera.recipes.recipe_files import SIZES
from tessera.recipes.sections import Recipe
from tessera.tasks.question_answering import question_task


def model_config(section: dict[str, Any], **defaults: Any) -> PreTrainedConfig:
    """The configuration that a model section describes; `defaults` are used for fields it leaves out.

    `type` is a name of `tessera.models.MODELS`, or a model type of transformers.
    Raises `TesseraError`, one line per problem, for unknown types, unknown fields and values the model refuses.
    """
    entry = _entry(section["type"])
    known = _fields(entry)
    section = _with_base(section, entry, defaults)
    if problems := _unknown(section, known):
        raise TesseraError("\n".join(problems))
    arguments = {key: value for key, value in defaults.items() if key in known}
    arguments |= {key: value for key, value in section.items() if key != "type"}
    return _checked(entry, arguments)


def model_problems(section: dict[str, Any]) -> list[str]:
    """What is wrong with a model section: `model.{field} must {rule}; got {value}.`, one line each."""
    try:
        entry = _entry(section["type"])
    except TesseraError as error:
        return [f"model.type must be a known model type: {error}"]
    try:
        section = _with_base(section, entry, {})
    except TesseraError as error:
        return str(error).splitlines()
    known = _fields(entry)
    problems = _unknown(section, known)
    try:
        config = _checked(entry, {key: value for key, value in section.items() if key in known})
        if not isinstance(config, StrictConfig) or isinstance(config, SegmentedConfig):
            _try_building(config)  # what transformers' configurations let pass
    except TesseraError as error:
        # "MemoryMosaicConfig: num_heads must ..." names the field
        prefixes = ("transformer: ", f"{entry.maker.__name__}: ")
        for line in str(error).splitlines():
            about = f"model must be one that {section['type']} accepts: {line}"
            problems.append(f"model.{line.split(': ', 1)[1]}" if line.startswith(prefixes) else about)
    return problems


def keep_fitting_sizes(section: dict[str, Any], written: Collection[str]) -> None:
    """Of a section that got another type, leave of the old one's `SIZES` what the new type has, by its own names.

    `written`: keys of the section that are meant for the new type. A type that is a published size keeps none.
    """
    try:
        entry = _entry(section["type"])
    except TesseraError:
        return  # `model_problems` says so
    known = set() if entry.is_preset else _fields(entry)
    for names in SIZES:
        old = [section.pop(name) for name in names if name in section and name not in written]
        old = [size for size in old if size is not None]  # that type's own default
        fitting = [name for name in names if name in known]
        if old and fitting and section.keys().isdisjoint(names):
            section[fitting[0]] = old[0]


def config_for(
    section: dict[str, Any], tokenizer: PreTrainedTokenizerFast, context: int, largest_token: int = -1
) -> PreTrainedConfig:
    """The configuration for a model that reads `tokenizer`'s ids in sequences of `context` tokens.

    Raises `TesseraError`: the model's vocabulary is smaller than the tokenizer's (or than a stored token needs).
    """
    special = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    config = model_config(section, vocab_size=num_ids(tokenizer), max_positions=context, n_positions=context, **special)
    needed = max(num_ids(tokenizer), largest_token + 1)
    if config.vocab_size < needed:
        raise TesseraError(
            f"model.vocab_size must be at least the tokenizer's ({needed} tokens), or ids would be out of range; "
            f"got {config.vocab_size}. Leave it out, or use this model's own tokenizer."
        )
    longest = context_limit(config)
    if longest is not None and longest < context:
        name = "n_positions" if hasattr(config, "n_positions") else "max_position_embeddings"
        raise TesseraError(f"model.{name} must be at least data.context ({context}); got {longest}.")
    return config


def untrained_config(recipe: Recipe) -> PreTrainedConfig:
    """The configuration that the recipe's model would have, where the tokenizer need not be there."""
    data = recipe.data
    context = max(data.context, max(stage.length for stage in recipe.training.stages) * segment_tokens(recipe))
    sizes = {"max_positions": context, "n_positions": context}
    if "vocab_size" not in recipe.model:
        task = None if data.task is None else question_task(data.task)
        sizes["vocab_size"] = vocabulary_size(recipe.tokenizer) if task is None else num_ids(task.vocabulary)
    return model_config(recipe.model, **sizes)


def build_model(config: PreTrainedConfig, seed: int, base: str | None = None) -> PreTrainedModel:
    """A model of `config` with initial weights by `seed` alone; ARMT, RMT and PRMT may start on the model in `base`."""
    with random_numbers_kept():
        torch.manual_seed(seed)
        if base is None:
            return untrained_model(config)
        return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config, base=load_model(base))


def segment_tokens(recipe: Recipe) -> int:
    """Tokens that one unit of a stage's length stands for: a segment of the model, where it reads in segments."""
    own = getattr(_entry(recipe.model["type"]).maker, "segment_size", recipe.data.context)
    return recipe.model.get("segment_size", own) if recipe.training.curriculum else recipe.data.context


def base_folder(section: dict[str, Any]) -> str | None:
    """The folder whose weights a segmented model starts from, if its section's `base` names one."""
    base = section.get("base")
    return base if isinstance(base, str) else None


def _with_base(section: dict[str, Any], entry: ModelEntry, defaults: dict[str, Any]) -> dict[str, Any]:
    """For ARMT, RMT, PRMT: `section` with its `base` as `base_config`.

    `base` is a model section of its own (`base_config` with its `model_type` says the same), or a folder with a model.
    """
    maker = entry.maker
    if not (isinstance(maker, type) and issubclass(maker, SegmentedConfig)):
        return section
    base = section.get("base", section.get("base_config"))
    if isinstance(base, dict) and isinstance(base.get("type", base.get("model_type")), str):
        fields_of_base = {key: value for key, value in base.items() if key != "model_type"}
        sizes = [section.get(name, getattr(maker, name)) for name in ("segment_size", "num_memory_tokens")]
        positions = sizes[0] + 2 * sizes[1] if all(isinstance(size, int) for size in sizes) else 0
        limits = {"max_positions": positions, "n_positions": positions}
        try:
            config = model_config({"type": base.get("model_type"), **fields_of_base}, **{**defaults, **limits})
        except TesseraError as error:
            lines = [line if line.startswith("model.") else line.split(": ", 1)[-1] for line in str(error).splitlines()]
            raise TesseraError("\n".join(f"model.base.{line.removeprefix('model.')}" for line in lines)) from None
    elif isinstance(base, str):
        config = load_config(base)
    else:
        message = "must be a model section with its type, or a folder with a model"
        raise TesseraError(f"model.base {message}; got {base!r}.")
    return {**{key: value for key, value in section.items() if key != "base"}, "base_config": config}


def _entry(name: str) -> ModelEntry:
    """What the model type stands for: one of the library's or of a plugin's, or transformers'."""
    if name in MODELS:
        return MODELS[name]
    try:
        return ModelEntry(CONFIG_MAPPING[name])
    except KeyError:
        guess = did_you_mean(name, [*MODELS, *CONFIG_MAPPING]).split("Known:")[0]
        known = f"{guess}Known: {', '.join(MODELS)}, and the model types of transformers. {ADVICE}"
        raise TesseraError(f"got {name!r}. {known}") from None


def _fields(entry: ModelEntry) -> set[str]:
    """The arguments of an entry's configuration."""
    maker = entry.maker
    if not isinstance(maker, type):
        return set(inspect.signature(maker).parameters)
    return {field.name for field in fields(maker)} | set(getattr(maker, "attribute_map", ()))


def _unknown(section: dict[str, Any], known: set[str]) -> list[str]:
    worth_naming = known - {field.name for field in fields(PreTrainedConfig)}
    return [
        f"model.{key} is not a known key; got {section[key]!r}. {did_you_mean(key, worth_naming)}"
        for key in section
        if key != "type" and key not in known
    ]


def _checked(entry: ModelEntry, arguments: dict[str, Any]) -> PreTrainedConfig:
    """`entry.config(**arguments)`, with transformers' type errors as a `TesseraError` of one line."""
    try:
        config = entry.config(**arguments)
    except TesseraError:
        raise
    except (TypeError, ValueError, StrictDataclassError) as error:
        raise TesseraError(" ".join(str(error).split())) from None
    layers = getattr(config, "num_hidden_layers", 0)
    name = config.attribute_map.get("num_hidden_layers", "num_hidden_layers")
    is_possible = not isinstance(layers, int) or layers <= MOST_LAYERS
    expect(is_possible, entry.maker.__name__, name, f"be at most {MOST_LAYERS:,}", layers)
    return config


def _try_building(config: PreTrainedConfig) -> None:
    """Build the model without its weights, once for each: some configurations are only refused by their model."""
    described = config.to_json_string(use_diff=False)
    if described not in _BUILT:
        try:
            meta_model(config)
        except (ValueError, TypeError, RuntimeError, ZeroDivisionError) as error:
            raise TesseraError(" ".join(str(error).split())[:300]) from None
        _BUILT.add(described)


MOST_LAYERS = 10_000  # which are modules, also where a model is made without weights
_BUILT: set[str] = set()
