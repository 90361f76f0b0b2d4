"""Small models of comparable size, by name: what experiments train and compare."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GPTNeoXConfig, MambaConfig, PreTrainedConfig, PreTrainedModel

from tessera.base.arguments import explain_all
from tessera.base.dataclass_io import is_count
from tessera.base.errors import TesseraError, did_you_mean, expect
from tessera.base.random_numbers import random_numbers_kept
from tessera.kernels import kernel_from_config
from tessera.models.linear_attention import LinearAttentionConfig
from tessera.models.lstm import LSTMConfig
from tessera.models.memory_mosaic import MemoryMosaicConfig
from tessera.models.memory_mosaic_v2 import MemoryMosaicV2Config
from tessera.models.presets import matching_llama_config
from tessera.models.registry import MODELS
from tessera.models.transformer import transformer_config
from tessera.models.wrapping import wrap, wrap_prmt, wrap_rmt

# Fields of `ModelSize` that the models check.
NO_COUNTS = "kernel initializer_range memory_initializer_range dropout contextual_dropout initialization".split()


@dataclass(frozen=True)
class ModelSize:
    """Sizes of the transformer that a model is to equal, in the words of configurations and recipes.

    Attributes:
        max_positions: the longest sequence that will be read. `transformer` has so many learned positions; v2's short
            term and its delays are to it as published: 1/16 and 1/64.
        kernel: of the mosaics' memories, the persistent ones of v1 excepted, as published: one of
            `kernel_names()`, or a mapping such as `{"name": "knn", "k": 32}`. Other models have none.
        num_persistent_slots: per head of each persistent memory of `mosaic`; None: as many as make the sizes equal.
        num_memory_tokens, memory_dim: of the segmented models (`memory_dim`: of ARMT alone, before the feature map).
        initializer_range: standard deviation of the segmented models' bases. memory_initializer_range: of PRMT's memory
            tokens; None: that of its token embeddings (published: 1).
        dropout: of the transformers; of `mosaic`, on weights and after the combining layers. contextual_dropout:
            whether on the weights of contextual memories too. initialization: of `mosaic`: "normal", or as the
            published library "fan_in", with logits / sqrt(width); of `mosaic_v2` and its twin `llama`: standard
            deviations of 0.02 or 1 / sqrt(width).
        mamba_state_size: None: `mamba` has two blocks for each layer, of the width that makes the sizes equal, and
            states of 16; a number: one block of `hidden_size` for each layer, with states of this size.
    """

    vocab_size: int
    hidden_size: int = 128
    num_layers: int = 4
    num_heads: int = 4
    max_positions: int = 1024
    kernel: Any = "gaussian"
    num_persistent_slots: int | None = None
    num_memory_tokens: int = 4
    memory_dim: int = 32
    initializer_range: float = 0.05
    memory_initializer_range: float | None = None
    dropout: float = 0.0
    contextual_dropout: bool = True
    initialization: str = "normal"
    mamba_state_size: int | None = None

    def __post_init__(self) -> None:
        where = "build_small_model"
        for name, value in asdict(self).items():
            if name in NO_COUNTS or value is None:
                continue
            least = 0 if name == "num_persistent_slots" else 1
            expect(is_count(value, least), where, name, "be a positive integer", repr(value))
        divides = self.hidden_size % self.num_heads == 0
        expect(divides, where, "num_heads", f"divide hidden_size ({self.hidden_size})", self.num_heads)
        kernel_from_config(self.kernel)

    @property
    def num_parameters(self) -> int:
        """Tied embedding and 12 width^2 per layer: a transformer's without positions, biases and norms."""
        return self.vocab_size * self.hidden_size + 12 * self.num_layers * self.hidden_size**2


def build_small_model(name: str, seed: int = 0, **size: Any) -> PreTrainedModel:
    """The model called `name` in `MODELS`, in float32, initialised from `seed`; `size`: fields of `ModelSize`.

    The language models have about the parameters of a transformer of this width and depth
    (`ModelSize.num_parameters`, to within 3 % from width 64 on); the segmented ones have the published base, whose
    feed-forward network is as narrow as the model. Global random state is left alone.
    Raises `TesseraError`: an unknown model or kernel, or impossible sizes.
    """
    entry, shape = MODELS[name], ModelSize(**size)
    if entry.of_size is None:
        known = [name for name, entry in MODELS.items() if entry.of_size is not None]
        raise TesseraError(f"model {name!r} has no rule for its size. {did_you_mean(name, known)}")
    with random_numbers_kept():
        torch.manual_seed(seed)
        return entry.of_size(shape)


def untrained_model(config: PreTrainedConfig) -> PreTrainedModel:
    """The causal language model of `config`, initialised by PyTorch's generator, without a warning about its loss."""
    model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    model.loss_type = model.loss_type or "ForCausalLM"  # what GPT-2 and GPT-NeoX take anyway, but with a warning
    if config.model_type != "mamba":
        return model
    from tessera.models.mamba import use_selective_scan  # transformers' Mamba takes half a second to import

    return use_selective_scan(model)


def _shared(size: ModelSize) -> dict[str, Any]:
    """What the configurations of this library's models, and of the transformer, call as `ModelSize` does."""
    return {name: getattr(size, name) for name in ("vocab_size", "hidden_size", "num_layers", "num_heads")}


def mosaic(size: ModelSize) -> PreTrainedModel:
    """Slots of 7/2 the width make the two memories' 12 width^2: three matrices, two, and the slots' keys and values."""
    slots = size.num_persistent_slots
    return untrained_model(
        MemoryMosaicConfig(
            **_shared(size),
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
        **_shared(size),
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


def transformer(size: ModelSize, positions: str = "absolute") -> PreTrainedModel:
    """GPT-2 (learned absolute positions), GPT-NeoX (rotary ones, which do not end with the trained length) or BLOOM.

    BLOOM's attention falls off with distance (ALiBi, Press et al. 2021).
    """
    sizes = _shared(size) | ({"max_positions": size.max_positions} if positions == "absolute" else {})
    return untrained_model(transformer_config(positions=positions, dropout=size.dropout, **sizes))


def linear_attention(size: ModelSize, variant: str) -> PreTrainedModel:
    """A sum of all pairs: without decay (linear transformer, Katharopoulos et al. 2020), with a fixed decay per head
    (RetNet, Sun et al. 2023), or with one that depends on the input (GLA, Yang et al. 2024)."""
    return untrained_model(LinearAttentionConfig(variant=variant, **_shared(size)))


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


def armt(size: ModelSize, correction: bool = True) -> PreTrainedModel:
    """ARMT as published; without the correction, gamma = 1: the ablation."""
    return wrap(_base(size), SEGMENT_SIZE, size.num_memory_tokens, size.memory_dim, correction=correction)


def rmt(size: ModelSize) -> PreTrainedModel:
    """RMT: the last layer's memory tokens go to the next segment."""
    return wrap_rmt(_base(size), SEGMENT_SIZE, size.num_memory_tokens)


def prmt(size: ModelSize) -> PreTrainedModel:
    """PRMT: every layer's memory tokens go to the next segment."""
    std = size.memory_initializer_range
    return wrap_prmt(_base(size), SEGMENT_SIZE, size.num_memory_tokens, memory_initializer_range=std)


explain_all(globals(), ("build_small_model", "untrained_model"))
