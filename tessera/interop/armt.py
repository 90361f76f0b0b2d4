"""Checkpoints of the published code of ARMT, RMT and PRMT.

All three wrap a Hugging Face model, whose own names reappear after `memory_cell.model.`; the wrapped layers of ARMT and
PRMT are stored a second time under `memory_cell.layers.`. Published names on the left:

    ARMT  <layer>.W_mq, W_mk, W_mv, W_mb         memories.<i>.query, key, value, strength
          <layer>.layer.*                        base.<layer>.layer.*
          memory_cell.memory                     memory_tokens.tokens
    RMT   <layer>.*                              base.<layer>.layer.*
    PRMT  <layer>.memory (1, M, hidden)          memory_tokens.<i>.tokens
          memory_cell.memory                     nothing: it is overwritten before the first layer
"""

import re
from difflib import get_close_matches
from functools import partial, reduce

import torch
from torch import Tensor
from transformers import AutoConfig, GPT2Config, PreTrainedConfig

from tessera.base.dataclass_io import shown
from tessera.base.errors import TesseraError
from tessera.base.random_numbers import random_numbers_kept
from tessera.interop.published import (
    REFERENCES,
    Published,
    check_arguments,
    expect_one,
    expect_shapes,
    refuse,
    renamed,
    without_wrappers,
)
from tessera.models.armt import ARMTConfig, ARMTForCausalLM
from tessera.models.prmt import PRMTConfig, PRMTForCausalLM
from tessera.models.recurrence import SegmentedConfig, SegmentedForCausalLM
from tessera.models.rmt import RMTConfig, RMTForCausalLM

# The published truncation (k2, max_n_segments) has no effect: the detached tensor is thrown away.
SHARED = {
    "base_model": None,
    "num_mem_tokens": None,
    "segment_size": None,
    "layers_attr": "transformer.h",
    "wrap_pos": True,
    "segment_alignment": None,
    "k2": None,
    "max_n_segments": None,
}
ARGUMENTS = {
    "armt": {**SHARED, "d_mem": None, "correction": True},
    "rmt": SHARED,
    "prmt": {**SHARED, "compatibility": "intended"},
}
RENAMED = ("rope_theta", "rope_scaling", "torch_dtype")  # fields that transformers reads, and keeps by other names
COMPATIBILITIES = {"intended": "own_layer", "published": "published"}
ASSOCIATION = {
    "query.weight": "W_mq.weight",
    "key.weight": "W_mk.weight",
    "value.weight": "W_mv.weight",
    "strength.weight": "W_mb.weight",
    "strength.bias": "W_mb.bias",
}


def _rebuild(source: str, model_class: type, state_dict: dict[str, Tensor], arguments: dict) -> SegmentedForCausalLM:
    config = configuration(source, arguments)
    tensors = convert(source, state_dict, config)
    with random_numbers_kept():  # the weights drawn here are all replaced
        # Nothing is rounded: neither to the type that base_model names nor to that of another tensor.
        model = model_class(config).to(reduce(torch.promote_types, (tensor.dtype for tensor in tensors.values())))
    expect_shapes(source, model, tensors)
    loaded = model.load_state_dict({name: tensor.detach() for name, tensor in tensors.items()}, strict=False)
    missing = [name for name in loaded.missing_keys if name != "base.lm_head.weight" or not _tied(config)]
    if missing:
        raise TesseraError(f"{source}: the checkpoint has nothing for {', '.join(missing[:5])}.")
    if loaded.unexpected_keys:
        raise TesseraError(f"{source}: unexpected tensors, as {', '.join(map(shown, loaded.unexpected_keys[:5]))}.")
    model.tie_weights()
    head = next((tensor for name, tensor in state_dict.items() if name.endswith("model.lm_head.weight")), None)
    if head is not None and _tied(config):
        expect_one(source, "lm_head.weight", head, "the embedding", model.get_input_embeddings().weight.to(head.dtype))
    return model.eval()


for name, model_class in {
    "armt": ARMTForCausalLM,  # `AssociativeMemoryCell` in `AssociativeRecurrentWrapper`
    "rmt": RMTForCausalLM,  # `MemoryCell` in `RecurrentWrapper`
    "prmt": PRMTForCausalLM,  # as it is meant, or with compatibility="published" as it runs (see `PRMTConfig`)
}.items():
    REFERENCES.add(name, partial(_rebuild, name, model_class))


def configuration(source: str, arguments: dict) -> SegmentedConfig:
    """Our configuration of the published constructors' arguments."""
    arguments = check_arguments(source, arguments, ARGUMENTS[source])
    for name in ("base_model", "num_mem_tokens", "segment_size", "d_mem"):
        if name in arguments and arguments[name] is None:
            raise TesseraError(f"{source}: argument {name!r} is missing.")
    shared = {
        "base_config": base_configuration(source, arguments["base_model"]),
        "segment_size": arguments["segment_size"],
        "num_memory_tokens": arguments["num_mem_tokens"],
        "segment_alignment": _alignment(source, arguments["segment_alignment"]),
        "own_memory_positions": arguments["wrap_pos"],
        "layers_path": arguments["layers_attr"],
    }
    if source == "rmt":
        return RMTConfig(**shared)
    if source == "armt":
        return ARMTConfig(**shared, memory_dim=arguments["d_mem"], correction=arguments["correction"])
    if arguments["compatibility"] not in COMPATIBILITIES:
        raise refuse(source, "compatibility", " or ".join(map(repr, COMPATIBILITIES)), arguments["compatibility"])
    return PRMTConfig(**shared, recurrence=COMPATIBILITIES[arguments["compatibility"]])


def _alignment(source: str, alignment: object) -> str:
    """None and descriptions that begin with it ("None (left) unless ...") are the published default, left."""
    if alignment is None or str(alignment).startswith("None"):
        return "left"
    if alignment not in ("left", "right", "center"):
        raise refuse(source, "segment_alignment", "None, 'left', 'right' or 'center'", alignment)
    return alignment


def base_configuration(source: str, base_model: dict | PreTrainedConfig) -> PreTrainedConfig:
    """The base model's configuration: a mapping of it (GPT-2 unless `model_type` says otherwise), or itself.

    `class` names the base for people, `semantics` explains it; both are not arguments.
    """
    if isinstance(base_model, PreTrainedConfig):
        return base_model
    if not isinstance(base_model, dict):
        raise TesseraError(
            f"{source}: base_model must be a mapping or a configuration; got {type(base_model).__name__}."
        )
    values = {name: value for name, value in base_model.items() if name not in ("class", "semantics")}
    model_type = values.pop("model_type", None)
    if model_type is None:
        described = str(base_model.get("class", "GPT2LMHeadModel"))
        if "GPT2LMHeadModel" not in described:
            raise refuse(source, "base_model", "a GPT2LMHeadModel, or name its model_type", described)
        model_type = "gpt2"
    known = AutoConfig.for_model(model_type)
    names = {"n_ctx", *RENAMED, *known.attribute_map, *known.to_dict()}
    for name in values:
        if not hasattr(known, name) and name not in names:
            near = get_close_matches(str(name), names, 1, 0.8)
            if near or isinstance(known, GPT2Config):  # others may hold what earlier releases of transformers had
                guess = f" Did you mean {near[0]!r}?" if near else ""
                raise TesseraError(f"{source}: unknown base_model argument {shown(name)}.{guess}")
    return AutoConfig.for_model(model_type, **values)


def convert(source: str, state_dict: dict[str, Tensor], config: SegmentedConfig) -> dict[str, Tensor]:
    """Our parameters as a differentiable function of the published ones."""
    layers = f"memory_cell.model.{config.layers_path}"
    tensors = renamed(source, state_dict, _with_cell)
    published = Published(source, tensors, lambda name, _: _is_redundant(name, config))
    result = {}
    for index in range(config.num_hidden_layers):
        if source == "armt":
            for ours, theirs in ASSOCIATION.items():
                result[f"memories.{index}.{ours}"] = published.take(f"{layers}.{index}.{theirs}")
        elif source == "prmt":
            memory = published.take(f"{layers}.{index}.memory")
            result[f"memory_tokens.{index}.tokens"] = memory.squeeze(0)
    memory = published.take("memory_cell.memory", config.num_memory_tokens, config.hidden_size)
    if source != "prmt":
        result["memory_tokens.tokens"] = memory
    wrapped = re.escape(layers) + r"\.\d+\.(layer\.)?"
    for name in tensors:
        in_layer = re.match(wrapped, name)
        own = in_layer and source != "rmt" and in_layer[1] is None  # taken above
        if not name.startswith("memory_cell.model.") or own or _is_redundant(name, config):
            continue
        ours = name if in_layer is None or source != "rmt" else f"{in_layer[0]}layer.{name[in_layer.end() :]}"
        result[ours.replace("memory_cell.model.", "base.", 1)] = published.take(name)
    published.finish()
    return result


def _is_redundant(name: str, config: SegmentedConfig) -> bool:
    """Second names of the wrapped layers, GPT-2's constant masks, and a head that is the embedding again."""
    tied = _tied(config) and name.endswith("model.lm_head.weight")
    return tied or re.match(r"memory_cell\.layers\.|.*\.attn\.(masked_)?bias$", name) is not None


def _tied(config: SegmentedConfig) -> bool:
    return config.base_config.tie_word_embeddings


def _with_cell(name: str) -> str:
    """The name inside the recurrent wrapper; a bare memory cell's names lack its prefix."""
    bare = without_wrappers(name)
    return bare if bare.startswith("memory_cell.") else f"memory_cell.{bare}"
