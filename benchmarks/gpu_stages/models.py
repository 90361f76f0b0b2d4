"""The language models that the stages compare: a mosaic and the transformer of equal size."""

import torch
from torch import nn
from transformers import PreTrainedConfig

from benchmarks.gpu_stages.settings import Settings
from tessera import MemoryMosaicConfig, MemoryMosaicV2Config
from tessera.models.presets import matching_llama_config
from tessera.models.small_models import untrained_model
from tessera.models.transformer import transformer_config

TINY = {"vocab_size": 64, "hidden_size": 32, "num_layers": 1, "num_heads": 2}


def pair(settings: Settings, name: str, context: int) -> dict[str, PreTrainedConfig]:
    """`v1`: GPT-2-small size against GPT-2. `v2`: 150 million parameters against Llama with as many."""
    if name == "v1":
        mosaic = MemoryMosaicConfig(**settings.pick({}, {**TINY, "num_persistent_slots": 8}))
        sizes = {key: getattr(mosaic, key) for key in ("vocab_size", "hidden_size", "num_layers", "num_heads")}
        return {"mosaic": mosaic, "transformer": transformer_config(**sizes, max_positions=context)}
    small = {"vocab_size": 24_576, "hidden_size": 768, "num_layers": 16, "num_heads": 12, "intermediate_size": 2048}
    tiny = {**TINY, "intermediate_size": 32, "short_term_span": 5}
    mosaic = MemoryMosaicV2Config(**settings.pick(small, tiny), tie_word_embeddings=True)
    return {"mosaic": mosaic, "transformer": matching_llama_config(mosaic, equal_parameters=True)}


def build(settings: Settings, config: PreTrainedConfig) -> nn.Module:
    """The model on the device, weights in float32."""
    torch.manual_seed(0)
    return untrained_model(config).to(settings.device)
