"""From a recipe's model section to a model configuration and a model.

A section names a model type and any fields of its configuration. `tessera.models.small_models` starts from the other
end, as experiments do: from the size of a transformer, for which it chooses the fields of every model. Both make the
model of a configuration by `untrained_model`.
"""

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tessera.base.errors import TesseraError, did_you_mean
from tessera.base.plugins import ADVICE
from tessera.data.tokenizers import vocabulary_size
from tessera.models.recurrence import SegmentedConfig
from tessera.models.saving.loading import load_config, load_model
from tessera.models.sizes import meta_model
from tessera.models.small_models import untrained_model
from tessera.models.transformer import context_limit, transformer_config

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from tessera.recipes.sections import Recipe

TRANSFORMER = "transformer"
OWN_TYPES = (TRANSFORMER, "memory_mosaic")  # they check their configurations themselves


def model_config(section: dict[str, Any], **defaults: Any) -> "PreTrainedConfig":
    """The configuration that a model section describes; `defaults` are used for fields it leaves out.

    `type: transformer` is the baseline of `tessera.models.transformer`; every other type is one of `AutoConfig`.
    Raises `TesseraError`, one line per problem, for unknown types, unknown fields and values the model refuses.
    """
    build, known = _builder(section["type"])
    section = _with_base(section, build, defaults)
    problems = [f"model.{key} {message}" for key, message in _unknown(section, known)]
    if problems:
        raise TesseraError("\n".join(problems))
    arguments = {key: value for key, value in defaults.items() if key in known}
    arguments |= {key: value for key, value in section.items() if key != "type"}
    return _checked(build, arguments)


def model_problems(section: dict[str, Any]) -> list[str]:
    """What is wrong with a model section: `model.{field} must {rule}; got {value}.`, one line each."""
    try:
        build, known = _builder(section["type"])
    except TesseraError as error:
        return [f"model.type must be a known model type: {error}"]
    try:
        section = _with_base(section, build, {})
    except TesseraError as error:
        return str(error).splitlines()
    problems = [f"model.{key} {message}" for key, message in _unknown(section, known)]
    own = section["type"].startswith(OWN_TYPES)
    try:
        config = _checked(build, {key: value for key, value in section.items() if key in known})
        if not own:
            _try_building(config)
    except TesseraError as error:
        lines = str(error).splitlines()
        own_lines = [f"model.{line.split(': ', 1)[-1]}" for line in lines]  # "MemoryMosaicConfig: num_heads must ..."
        problems += (
            own_lines if own else [f"model must be one that {section['type']} accepts: {line}" for line in lines]
        )
    return problems


def config_for(
    section: dict[str, Any], tokenizer: "PreTrainedTokenizerFast", context: int, largest_token: int = -1
) -> "PreTrainedConfig":
    """The configuration for a model that reads `tokenizer`'s ids in sequences of `context` tokens.

    Raises `TesseraError` when the model's vocabulary is smaller than the tokenizer's (or than a stored token needs).
    """
    config = model_config(
        section,
        vocab_size=len(tokenizer),
        max_positions=context,
        n_positions=context,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    needed = max(len(tokenizer), largest_token + 1)
    if config.vocab_size < needed:
        raise TesseraError(
            f"model.vocab_size must be at least the tokenizer's ({needed} tokens), or ids would be out of range; "
            f"got {config.vocab_size}. Leave it out, or use this model's own tokenizer."
        )
    longest = context_limit(config)
    if longest is not None and longest < context:
        raise TesseraError(f"model.n_positions must be at least data.context ({context}); got {longest}.")
    return config


def untrained_config(recipe: "Recipe") -> "PreTrainedConfig":
    """The configuration that the recipe's model would have, where the tokenizer need not be there."""
    sizes = {"max_positions": recipe.data.context, "n_positions": recipe.data.context}
    if "vocab_size" not in recipe.model:
        sizes["vocab_size"] = vocabulary_size(recipe.tokenizer)
    return model_config(recipe.model, **sizes)


def build_model(config: "PreTrainedConfig", seed: int, base: str | None = None) -> "PreTrainedModel":
    """A model of `config` with initial weights by `seed` alone; ARMT, RMT and PRMT may start on the model in `base`."""

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if base is None:
            return untrained_model(config)
        return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config, base=load_model(base))


def base_folder(section: dict[str, Any]) -> str | None:
    """The folder whose weights a segmented model starts from, if its section's `base` names one."""
    base = section.get("base")
    return base if isinstance(base, str) else None


def _with_base(section: dict[str, Any], build: Callable, defaults: dict[str, Any]) -> dict[str, Any]:
    """For ARMT, RMT, PRMT: `section` with its `base` as `base_config`.

    `base` is a model section of its own (`base_config` with its `model_type` says the same), or a folder with a model.
    """

    if not (isinstance(build, type) and issubclass(build, SegmentedConfig)):
        return section
    base = section.get("base", section.get("base_config"))
    if isinstance(base, dict) and isinstance(base.get("type", base.get("model_type")), str):
        fields_of_base = {key: value for key, value in base.items() if key != "model_type"}
        sizes = [section.get(name, getattr(build, name)) for name in ("segment_size", "num_memory_tokens")]
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


def _builder(name: str) -> tuple[Callable[..., "PreTrainedConfig"], set[str]]:
    """What makes configurations of this model type, and the fields it takes."""

    if name == TRANSFORMER:
        return transformer_config, set(transformer_config.__kwdefaults__ or ())
    try:
        cls = CONFIG_MAPPING[name]
    except KeyError:
        guess = did_you_mean(name, [TRANSFORMER, *CONFIG_MAPPING]).split("Known:")[0]
        own = [TRANSFORMER, *sorted(key for key in CONFIG_MAPPING if key.startswith(OWN_TYPES))]
        known = f"{guess}Known: {', '.join(own)}, and the model types of transformers. {ADVICE}"
        raise TesseraError(f"got {name!r}. {known}") from None
    return cls, {field.name for field in fields(cls)} | set(cls.attribute_map)


def _unknown(section: dict[str, Any], known: set[str]) -> list[tuple[str, str]]:

    worth_naming = known - {field.name for field in fields(PreTrainedConfig)}
    return [
        (key, f"is not a known key; got {section[key]!r}. {did_you_mean(key, worth_naming)}")
        for key in section
        if key != "type" and key not in known
    ]


def _checked(build: Callable[..., "PreTrainedConfig"], arguments: dict[str, Any]) -> "PreTrainedConfig":
    """`build(**arguments)`, with the type errors of transformers' configurations as a `TesseraError` of one line."""

    try:
        return build(**arguments)
    except TesseraError:
        raise
    except (TypeError, ValueError, StrictDataclassError) as error:
        raise TesseraError(" ".join(str(error).split())) from None


def _try_building(config: "PreTrainedConfig") -> None:
    """Build the model without its weights: some configurations are only refused by their model."""
    try:
        meta_model(config)
    except (ValueError, TypeError, RuntimeError, ZeroDivisionError) as error:
        raise TesseraError(" ".join(str(error).split())[:300]) from None
