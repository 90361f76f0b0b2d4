"""The library's own models and the baselines beside them, by name."""

from collections.abc import Callable
from functools import partial
from typing import Any

from transformers import LlamaConfig, MambaConfig

from tessera.models import small_models as sized
from tessera.models.armt import ARMTConfig, ARMTForCausalLM
from tessera.models.classification import ARMTModel, PRMTModel, RMTModel
from tessera.models.linear_attention import LinearAttentionConfig, LinearAttentionForCausalLM, LinearAttentionModel
from tessera.models.lstm import LSTMConfig, LSTMForCausalLM, LSTMModel
from tessera.models.memory_mosaic import MemoryMosaicConfig, MemoryMosaicForCausalLM, MemoryMosaicModel
from tessera.models.memory_mosaic_v2 import MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM, MemoryMosaicV2Model
from tessera.models.presets import llama_fields
from tessera.models.prmt import PRMTConfig, PRMTForCausalLM
from tessera.models.registry import MODELS, ModelEntry, register_model
from tessera.models.rmt import RMTConfig, RMTForCausalLM
from tessera.models.transformer import transformer_config

register_model(MemoryMosaicConfig, MemoryMosaicForCausalLM, MemoryMosaicModel)
register_model(MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM, MemoryMosaicV2Model)
register_model(LinearAttentionConfig, LinearAttentionForCausalLM, LinearAttentionModel)
register_model(LSTMConfig, LSTMForCausalLM, LSTMModel, of_size=sized.lstm)
register_model(ARMTConfig, ARMTForCausalLM, ARMTModel, of_size=sized.armt)
register_model(RMTConfig, RMTForCausalLM, RMTModel, of_size=sized.rmt)
register_model(PRMTConfig, PRMTForCausalLM, PRMTModel, of_size=sized.prmt)


def _variant(config: Callable, of_size: Callable, **chosen: Any) -> ModelEntry:
    return ModelEntry(partial(config, **chosen), partial(of_size, **chosen))


_V2_LARGE = {"hidden_size": 4096, "num_layers": 32, "num_heads": 32, "intermediate_size": 14336}
_ENTRIES = {
    "mosaic": ModelEntry(MemoryMosaicConfig, sized.mosaic),
    "mosaic_v2": ModelEntry(MemoryMosaicV2Config, sized.mosaic_v2),
    "llama": ModelEntry(LlamaConfig, sized.llama),
    "mamba": ModelEntry(MambaConfig, sized.mamba),
    "transformer": ModelEntry(transformer_config, sized.transformer),
    "transformer_rope": _variant(transformer_config, sized.transformer, positions="rope"),
    "transformer_alibi": _variant(transformer_config, sized.transformer, positions="alibi"),
    "linear_transformer": _variant(LinearAttentionConfig, sized.linear_attention, variant="linear_transformer"),
    "retnet": _variant(LinearAttentionConfig, sized.linear_attention, variant="retnet"),
    "gla": _variant(LinearAttentionConfig, sized.linear_attention, variant="gla"),
    "armt_no_correction": _variant(ARMTConfig, sized.armt, correction=False),
    # Memory Mosaics, section 6: the shape of GPT-2 small.
    "mosaic-gpt2-small": ModelEntry(MemoryMosaicConfig, is_preset=True),
    # Memory Mosaics v2, section 4, and the transformers beside them. Large: 9.9 B parameters, 8.3 B without long-term
    # memories, Llama 8.8 B.
    "mosaic-v2-small": ModelEntry(MemoryMosaicV2Config, is_preset=True),
    "mosaic-v2-large": ModelEntry(partial(MemoryMosaicV2Config, **_V2_LARGE), is_preset=True),
    "llama-small": ModelEntry(partial(LlamaConfig, **llama_fields(MemoryMosaicV2Config())), is_preset=True),
    "llama-large": ModelEntry(partial(LlamaConfig, **llama_fields(MemoryMosaicV2Config(**_V2_LARGE))), is_preset=True),
}
for _name, _entry in _ENTRIES.items():
    MODELS.add(_name, _entry)
