"""The models that are compared, by name."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from tessera.errors import expect
from tessera.registry import Registry


@dataclass(frozen=True)
class Sizes:
    """Of a model: layers and width of the base, its heads, tokens and width of the memory, and its vocabulary.

    Attributes:
        memory_dim: before the feature map (ARMT alone). initializer_range: standard deviation of the base's weights.
    """

    vocab_size: int
    num_layers: int = 4
    hidden_size: int = 128
    num_heads: int = 4
    num_memory_tokens: int = 4
    memory_dim: int = 32
    initializer_range: float = 0.05
    max_positions: int = 1024


MODELS: Registry[Callable[[Sizes, int], nn.Module]] = Registry("model")


def build(name: str, sizes: Sizes, seed: int) -> nn.Module:
    """The model called `name`, initialised from `seed`; global random state is left alone."""
    make = MODELS[name]
    expect(
        sizes.hidden_size % sizes.num_heads == 0,
        name,
        "num_heads",
        f"divide hidden_size ({sizes.hidden_size})",
        sizes.num_heads,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(sizes, seed)


def _base(sizes: Sizes) -> nn.Module:
    """The published scripts' base: GPT-NeoX, a quarter of each head rotated, inner width equal to the width, untied.

    Positions that are learned and added, as in GPT-2, end up in the memory's keys and hold training on a plateau.
    """
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    return GPTNeoXForCausalLM(
        GPTNeoXConfig(
            vocab_size=sizes.vocab_size,
            hidden_size=sizes.hidden_size,
            num_hidden_layers=sizes.num_layers,
            num_attention_heads=sizes.num_heads,
            intermediate_size=sizes.hidden_size,
            max_position_embeddings=64,
            rotary_pct=0.25,
            initializer_range=sizes.initializer_range,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def _armt(sizes: Sizes, correction: bool) -> nn.Module:
    import tessera.armt as armt

    # The segment size is set anew for every text: one pair.
    return armt.wrap(_base(sizes), 4, sizes.num_memory_tokens, memory_dim=sizes.memory_dim, correction=correction)


@MODELS.register("armt")
def armt_with_correction(sizes: Sizes, seed: int) -> nn.Module:
    """ARMT as published."""
    return _armt(sizes, correction=True)


@MODELS.register("armt_no_correction")
def armt_without_correction(sizes: Sizes, seed: int) -> nn.Module:
    """ARMT with gamma = 1: the ablation."""
    return _armt(sizes, correction=False)


@MODELS.register("rmt")
def rmt(sizes: Sizes, seed: int) -> nn.Module:
    """The last layer's memory tokens are carried on."""
    import tessera.armt as armt

    return armt.wrap_rmt(_base(sizes), 4, sizes.num_memory_tokens)


@MODELS.register("prmt")
def prmt(sizes: Sizes, seed: int) -> nn.Module:
    """Every layer's memory tokens are carried on."""
    import tessera.armt as armt

    return armt.wrap_prmt(_base(sizes), 4, sizes.num_memory_tokens)


def _whole_text(name: str, sizes: Sizes, seed: int) -> nn.Module:
    """A language model of the library of about as many parameters: half the layers, of 9/8 the width."""
    from tessera.experiments.language_models import build_language_model

    width = round(sizes.hidden_size * 9 / 8 / sizes.num_heads) * sizes.num_heads
    return build_language_model(
        name,
        vocab_size=sizes.vocab_size,
        hidden_size=width,
        num_layers=max(1, sizes.num_layers // 2),
        num_heads=sizes.num_heads,
        seed=seed,
        max_positions=sizes.max_positions,
    )


@MODELS.register("mamba")
def mamba(sizes: Sizes, seed: int) -> nn.Module:
    """As many Mamba blocks as the paper's: 4."""
    return _whole_text("mamba", sizes, seed)


@MODELS.register("mosaic")
def mosaic(sizes: Sizes, seed: int) -> nn.Module:
    """Memory Mosaic: stores every pair it reads, the upper bound of any memory of fixed size."""
    return _whole_text("mosaic", sizes, seed)
