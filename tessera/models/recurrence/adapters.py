"""Adapters of PEFT whose files hold the memory."""

import re
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, WeightTransform


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
