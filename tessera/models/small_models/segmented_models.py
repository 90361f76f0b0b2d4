"""Models that read a text segment by segment into a memory, around the base of the published scripts."""

from typing import Any

from transformers import AutoModelForCausalLM, GPTNeoXConfig, PreTrainedModel

from tessera.models.armt import ARMTConfig, ARMTForCausalLM
from tessera.models.prmt import PRMTConfig, PRMTForCausalLM
from tessera.models.rmt import RMTConfig, RMTForCausalLM
from tessera.models.small_models.size import ModelSize

SEGMENT_SIZE = 4  # to begin with: whoever reads a text says its segments


def _base(size: ModelSize) -> PreTrainedModel:
    """GPT-NeoX, a quarter of each head rotated, inner width equal to the width, untied.

    Positions that are learned and added, as in GPT-2, end up in the memory's keys and hold training on a plateau.
    """
    return AutoModelForCausalLM.from_config(
        GPTNeoXConfig(
            vocab_size=size.vocab_size,
            hidden_size=size.hidden_size,
            num_hidden_layers=size.num_layers,
            num_attention_heads=size.num_heads,
            intermediate_size=size.hidden_size,
            max_position_embeddings=64,
            rotary_pct=0.25,
            initializer_range=size.initializer_range,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def _wrapped(config_class: type, model_class: type, size: ModelSize, **options: Any) -> PreTrainedModel:
    base = _base(size)
    config = config_class(
        base_config=base.config, segment_size=SEGMENT_SIZE, num_memory_tokens=size.num_memory_tokens, **options
    )
    return model_class(config, base=base)


def armt(size: ModelSize) -> PreTrainedModel:
    """ARMT as published."""
    return _wrapped(ARMTConfig, ARMTForCausalLM, size, memory_dim=size.memory_dim)


def armt_no_correction(size: ModelSize) -> PreTrainedModel:
    """ARMT with gamma = 1: the ablation."""
    return _wrapped(ARMTConfig, ARMTForCausalLM, size, memory_dim=size.memory_dim, correction=False)


def rmt(size: ModelSize) -> PreTrainedModel:
    """RMT: the last layer's memory tokens go to the next segment."""
    return _wrapped(RMTConfig, RMTForCausalLM, size)


def prmt(size: ModelSize) -> PreTrainedModel:
    """PRMT: every layer's memory tokens go to the next segment."""
    return _wrapped(PRMTConfig, PRMTForCausalLM, size, memory_initializer_range=size.memory_initializer_range)
