"""The transformer of a mosaic's configuration, and both counted as the v2 paper counts."""

from typing import Any

from transformers import LlamaConfig, PreTrainedConfig

from tessera.base.arguments import explain_all
from tessera.models.memory_mosaic_v2 import MemoryMosaicV2Config
from tessera.models.sizes import count_parameters, flops_per_token


def matching_llama_config(config: MemoryMosaicV2Config, equal_parameters: bool = False) -> LlamaConfig:
    """Llama with multi-head attention and the layers, width, heads and feed-forward network of `config`.

    Positions are rotary with Llama 3's base. With `equal_parameters` the feed-forward network is widened until the
    number of parameters is that of `config` (to within one unit of that width): two memories have two matrices per
    layer more than attention, about 2/3 of the width.
    """
    return LlamaConfig(**llama_fields(config, equal_parameters))


def llama_fields(config: MemoryMosaicV2Config, equal_parameters: bool = False) -> dict[str, Any]:
    """The arguments of `matching_llama_config`'s configuration."""
    width, heads = config.hidden_size, config.num_heads
    memories = 1 + config.long_term_memory
    extra = memories * (3 * width * width + 2 * width * heads + 4 * heads) - 4 * width * width
    shared = "vocab_size hidden_size rms_norm_eps initializer_range tie_word_embeddings".split()
    shared += ["bos_token_id", "eos_token_id", "pad_token_id"]
    return {
        **{name: getattr(config, name) for name in shared},
        "intermediate_size": config.intermediate_size + (round(extra / (3 * width)) if equal_parameters else 0),
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": 131072,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    }


def published_counts(config: PreTrainedConfig, context: int = 256) -> dict[str, object]:
    """Parameters and FLOPs per token by the v2 paper's counting, of a model and what tables 2 and 6 set beside it."""
    counted = {"model": config}
    if config.model_type == "memory_mosaic_v2" and config.long_term_memory:
        counted["without_long_term_memory"] = type(config)(**{**config.to_diff_dict(), "long_term_memory": False})
        counted["transformer"] = matching_llama_config(config)
    return {
        "context": context,
        **{
            name: {"parameters": count_parameters(each), "flops_per_token": flops_per_token(each, context, False)}
            for name, each in counted.items()
        },
    }


explain_all(globals(), ("matching_llama_config", "llama_fields", "published_counts"))
