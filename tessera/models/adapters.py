"""What PEFT's tables say of our models: the layers that an adapter goes on where a user names none, and prefixes."""

import importlib.util
import re
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, WeightTransform

from tessera.models.stack_state import Prefix

# Those of keys and values, as in PEFT's own tables for transformers.
MOSAIC = ["key_extractor.projection", "value_extractor.projection"]
LINEAR = ["memory.key", "memory.value"]
# Around a base of any family: names of attention, then of RWKV and Mamba. The memory's own are not among them.
WRAPPED = ["c_attn", "q_proj", "v_proj", "query_key_value", "qkv_proj", "Wqkv", "kv_proj", "self.query", "self.value"]
WRAPPED += ["attention.key", "attention.value", "in_proj", "x_proj", *MOSAIC, *LINEAR]
ADAPTED = {
    "memory_mosaic": MOSAIC,
    "memory_mosaic_v2": MOSAIC,
    "linear_attention": LINEAR,
    **dict.fromkeys(("armt", "rmt", "prmt"), WRAPPED),
}
STACKS = ("memory_mosaic", "memory_mosaic_v2", "linear_attention")
OTHER_LAYERS = ("LNTUNING", "IA3", "BEFT")  # norms, feed-forward networks, biases: their tables name other layers


def register() -> None:
    """Extend PEFT's tables, if it is installed."""
    if importlib.util.find_spec("peft") is None:
        return
    from peft.utils import constants

    for name, table in vars(constants).items():
        if name.endswith("_TARGET_MODULES_MAPPING") and not any(other in name for other in OTHER_LAYERS):
            table.update(ADAPTED)
    prefixes = constants.TRANSFORMERS_MODELS_TO_PREFIX_TUNING_POSTPROCESS_MAPPING
    prefixes.update(dict.fromkeys(STACKS, Prefix.of))  # type: ignore[arg-type]  # a state for a tuple of tensors


def adapter_names(
    model: PreTrainedModel, modules: tuple[str, ...], adapter: str, config: Any = None
) -> list[WeightTransform]:
    """How names in the file of an adapter become the model's, with `modules` among its `modules_to_save`.

    Transformers 5.17 does not look for the copies that PEFT makes of them, whose names in the file are the originals'.
    """
    # `from_pretrained` gives those that its caller asked for in `config`.
    names = list(getattr(config, "weight_mapping", None) or get_model_conversion_mapping(model))
    for name in modules:
        module: nn.Module = model.get_submodule(name)
        for key in getattr(module, "original_module", module).state_dict():
            names.append(WeightRenaming(rf"^{re.escape(f'{name}.{key}')}$", f"{name}.modules_to_save.{adapter}.{key}"))
    return names
