"""Language models that read a text as a whole, all of the size of one transformer."""

from collections.abc import Callable
from typing import Any

from transformers import AutoModelForCausalLM, MambaConfig, PreTrainedConfig, PreTrainedModel

from tessera.kernels import kernel_from_config
from tessera.models.linear_attention import LinearAttentionConfig
from tessera.models.lstm import LSTMConfig
from tessera.models.memory_mosaic import MemoryMosaicConfig
from tessera.models.memory_mosaic_v2 import MemoryMosaicV2Config
from tessera.models.presets import matching_llama_config
from tessera.models.small_models.size import ModelSize
from tessera.models.transformer import transformer_config


def untrained_model(config: PreTrainedConfig) -> PreTrainedModel:
    """The causal language model of `config`, initialised by PyTorch's generator, without a warning about its loss."""
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    model.loss_type = model.loss_type or "ForCausalLM"  # what GPT-2 and GPT-NeoX take anyway, but with a warning
    if config.model_type != "mamba":
        return model
    from tessera.models.mamba import use_selective_scan  # transformers' Mamba takes half a second to import

    return use_selective_scan(model)


def _transformer_of(size: ModelSize, **positions: Any) -> PreTrainedModel:
    return untrained_model(
        transformer_config(
            vocab_size=size.vocab_size,
            hidden_size=size.hidden_size,
            num_layers=size.num_layers,
            num_heads=size.num_heads,
            dropout=size.dropout,
            **positions,
        )
    )


def mosaic(size: ModelSize) -> PreTrainedModel:
    """Slots of 7/2 the width make the two memories' 12 width^2: three matrices, two, and the slots' keys and values."""
    slots = size.num_persistent_slots
    return untrained_model(
        MemoryMosaicConfig(
            vocab_size=size.vocab_size,
            hidden_size=size.hidden_size,
            num_layers=size.num_layers,
            num_heads=size.num_heads,
            kernel=kernel_from_config(size.kernel).to_config(),
            num_persistent_slots=7 * size.hidden_size // 2 if slots is None else slots,
            weight_dropout=size.dropout,
            contextual_weight_dropout=None if size.contextual_dropout else 0.0,
            residual_dropout=size.dropout,
            initialization=size.initialization,
            logit_scale=size.hidden_size**-0.5 if size.initialization == "fan_in" else 1.0,
        )
    )


def mosaic_v2(size: ModelSize) -> PreTrainedModel:
    """Published proportions at context 4,096: short term 256, delay 64 and, in training, 64 to 256."""
    return untrained_model(_mosaic_v2_config(size))


def _mosaic_v2_config(size: ModelSize) -> MemoryMosaicV2Config:
    width, heads = size.hidden_size, size.num_heads
    span = max(4, size.max_positions // 16)
    # Each of the two memories: keys, values, output, and two numbers per head from the input; SwiGLU: three matrices.
    inner = round((12 * width**2 - 2 * (3 * width**2 + 2 * width * heads)) / (3 * width))
    return MemoryMosaicV2Config(
        vocab_size=size.vocab_size,
        hidden_size=width,
        num_layers=size.num_layers,
        num_heads=heads,
        kernel=kernel_from_config(size.kernel).to_config(),
        intermediate_size=max(1, inner),
        short_term_span=span,
        long_term_delay=span // 4,
        training_long_term_delay=(span // 4, span),
        initializer_range=width**-0.5 if size.initialization == "fan_in" else 0.02,
        tie_word_embeddings=True,
    )


def llama(size: ModelSize) -> PreTrainedModel:
    """The twin of `mosaic_v2`: Llama of its width, depth and heads, with as many parameters; rotary positions."""
    return untrained_model(matching_llama_config(_mosaic_v2_config(size), equal_parameters=True))


def transformer_alibi(size: ModelSize) -> PreTrainedModel:
    """BLOOM: attention that falls off with distance (Press et al. 2021)."""
    return _transformer_of(size, positions="alibi")


def transformer(size: ModelSize) -> PreTrainedModel:
    """GPT-2: learned absolute positions."""
    return _transformer_of(size, max_positions=size.max_positions)


def transformer_rope(size: ModelSize) -> PreTrainedModel:
    """GPT-NeoX with rotary positions, which do not end with the trained length."""
    return _transformer_of(size, positions="rope")


def _linear_attention(size: ModelSize, variant: str) -> PreTrainedModel:
    return untrained_model(
        LinearAttentionConfig(
            variant=variant,
            vocab_size=size.vocab_size,
            hidden_size=size.hidden_size,
            num_layers=size.num_layers,
            num_heads=size.num_heads,
        )
    )


def linear_transformer(size: ModelSize) -> PreTrainedModel:
    """A sum of all pairs without decay (Katharopoulos et al. 2020)."""
    return _linear_attention(size, "linear_transformer")


def retnet(size: ModelSize) -> PreTrainedModel:
    """A sum with a fixed decay per head (Sun et al. 2023)."""
    return _linear_attention(size, "retnet")


def gla(size: ModelSize) -> PreTrainedModel:
    """A sum whose decay depends on the input (Yang et al. 2024)."""
    return _linear_attention(size, "gla")


def lstm(size: ModelSize) -> PreTrainedModel:
    """As many layers, of the width whose 8 width^2 per layer come closest to the transformer's parameters."""

    def count(width: int) -> int:
        return size.vocab_size * width + size.num_layers * (8 * width**2 + 8 * width) + 2 * width

    width = _closest(count, size.num_parameters, step=1)
    return untrained_model(LSTMConfig(vocab_size=size.vocab_size, hidden_size=width, num_layers=size.num_layers))


def mamba(size: ModelSize) -> PreTrainedModel:
    """Two Mamba blocks for a transformer's layer, as published (Gu and Dao 2023), of the width that equals its size.

    With `mamba_state_size`: one block for a layer, of the layer's width.
    """
    equal_size = size.mamba_state_size is None
    layers = 2 * size.num_layers if equal_size else size.num_layers

    def count(width: int) -> int:
        inner, rank = 2 * width, -(-width // 16)
        block = 3 * inner * width + inner * (4 + 1) + inner * (rank + 32) + rank * inner + inner + inner * 17 + width
        return size.vocab_size * width + layers * block + width

    width = _closest(count, size.num_parameters, step=2) if equal_size else size.hidden_size
    config = MambaConfig(
        vocab_size=size.vocab_size,
        hidden_size=width,
        num_hidden_layers=layers,
        state_size=size.mamba_state_size or 16,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return untrained_model(config)


def _closest(count: Callable[[int], int], target: int, step: int) -> int:
    """The multiple of `step` whose (growing) `count` comes closest to `target`."""
    width = step
    while count(width + step) < target:
        width += step
    return min(width, width + step, key=lambda candidate: abs(count(candidate) - target))
