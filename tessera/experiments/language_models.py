"""The small language models that experiments compare, all of the size of one transformer."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tessera.errors import TesseraError, did_you_mean, expect
from tessera.kernels import KERNELS, Kernel, kernel_from_config
from tessera.registry import Registry

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

# The kernels of the papers' tables, by the names used there, and all of the registry.
KERNEL_ALIASES: dict[str, Any] = {
    "sparsemax": "epanechnikov",
    "gaussian_knn": {"name": "knn", "base": "gaussian"},
    "uniform_knn": {"name": "knn", "base": "uniform"},
}


class Shape(NamedTuple):
    """Sizes of the transformer that a model is to equal, its kernel, and the longest sequence to be read."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    kernel: Kernel
    max_positions: int

    @property
    def num_parameters(self) -> int:
        """Tied embedding and 12 width^2 per layer: a transformer's without positions, biases and norms."""
        return self.vocab_size * self.hidden_size + 12 * self.num_layers * self.hidden_size**2


LANGUAGE_MODELS: Registry[Callable[[Shape], "PreTrainedConfig"]] = Registry("model")


def build_language_model(
    name: str,
    *,
    vocab_size: int,
    hidden_size: int,
    num_layers: int,
    num_heads: int,
    kernel: Any = "gaussian",
    seed: int = 0,
    max_positions: int = 1024,
) -> "PreTrainedModel":
    """The language model called `name` in `LANGUAGE_MODELS`, in float32, initialised from `seed`.

    All have about the parameters of a transformer of this width and depth (`Shape.num_parameters`, to within 3 % from
    width 64 on). Global random state is left alone.

    Args:
        kernel: of the mosaics' memories, the persistent ones of v1 excepted, as published: a name of `KERNELS`, one of
            `KERNEL_ALIASES`, or a mapping such as `{"name": "knn", "k": 32}`. Other models have none.
        max_positions: the longest sequence that will be read. The transformer has so many learned positions; v2's short
            term and its delays are to it as published: 1/16 and 1/64.
    Raises:
        TesseraError: an unknown model or kernel, or impossible sizes.
    """
    from transformers import AutoModelForCausalLM

    from tessera.models.lstm import LSTMConfig, LSTMForCausalLM

    where = "build_language_model"
    sizes = {"vocab_size": vocab_size, "hidden_size": hidden_size, "num_layers": num_layers, "num_heads": num_heads}
    for size, value in {**sizes, "max_positions": max_positions}.items():
        expect(isinstance(value, int) and value > 0, where, size, "be a positive integer", repr(value))
    expect(hidden_size % num_heads == 0, where, "num_heads", f"divide hidden_size ({hidden_size})", num_heads)
    config = LANGUAGE_MODELS[name](Shape(**sizes, kernel=named_kernel(kernel), max_positions=max_positions))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(config, LSTMConfig):
            return LSTMForCausalLM(config)
        model = AutoModelForCausalLM.from_config(config)
    model.loss_type = model.loss_type or "ForCausalLM"  # what GPT-2 takes anyway, but with a warning
    return model


def named_kernel(kernel: Any) -> Kernel:
    """The kernel that a name, an alias or a mapping stands for; see `build_language_model`."""
    if not isinstance(kernel, str):
        return kernel_from_config(kernel)
    if kernel not in kernel_names():
        raise TesseraError(f"unknown kernel {kernel!r}. {did_you_mean(kernel, kernel_names())}")
    return kernel_from_config(KERNEL_ALIASES.get(kernel, kernel))


def kernel_names() -> list[str]:
    """Every name that `build_language_model` knows a kernel by."""
    return [*KERNELS, *KERNEL_ALIASES]


@LANGUAGE_MODELS.register("mosaic")
def _mosaic(shape: Shape) -> "PreTrainedConfig":
    """Slots of 7/2 the width make the two memories' 12 width^2: three matrices, two, and the slots' keys and values."""
    from tessera.models.memory_mosaic import MemoryMosaicConfig

    return MemoryMosaicConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        kernel=shape.kernel.to_config(),
        num_persistent_slots=7 * shape.hidden_size // 2,
    )


@LANGUAGE_MODELS.register("mosaic_v2")
def _mosaic_v2(shape: Shape) -> "PreTrainedConfig":
    """Published proportions at context 4,096: short term 256, delay 64 and, in training, 64 to 256."""
    from tessera.models.memory_mosaic_v2 import MemoryMosaicV2Config

    width, heads = shape.hidden_size, shape.num_heads
    span = max(4, shape.max_positions // 16)
    # Each of the two memories: keys, values, output, and two numbers per head from the input; SwiGLU: three matrices.
    inner = round((12 * width**2 - 2 * (3 * width**2 + 2 * width * heads)) / (3 * width))
    return MemoryMosaicV2Config(
        vocab_size=shape.vocab_size,
        hidden_size=width,
        num_layers=shape.num_layers,
        num_heads=heads,
        kernel=shape.kernel.to_config(),
        intermediate_size=max(1, inner),
        short_term_span=span,
        long_term_delay=span // 4,
        training_long_term_delay=(span // 4, span),
        tie_word_embeddings=True,
    )


@LANGUAGE_MODELS.register("transformer")
def _transformer(shape: Shape) -> "PreTrainedConfig":
    """GPT-2: learned absolute positions."""
    from tessera.models.transformer import transformer_config

    return transformer_config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_layers=shape.num_layers,
        num_heads=shape.num_heads,
        max_positions=shape.max_positions,
    )


@LANGUAGE_MODELS.register("lstm")
def _lstm(shape: Shape) -> "PreTrainedConfig":
    """As many layers, of the width whose 8 width^2 per layer come closest to the transformer's parameters."""
    from tessera.models.lstm import LSTMConfig

    def count(width: int) -> int:
        return shape.vocab_size * width + shape.num_layers * (8 * width**2 + 8 * width) + 2 * width

    width = _closest(count, shape.num_parameters, step=1)
    return LSTMConfig(vocab_size=shape.vocab_size, hidden_size=width, num_layers=shape.num_layers)


@LANGUAGE_MODELS.register("mamba")
def _mamba(shape: Shape) -> "PreTrainedConfig":
    """Two Mamba blocks for a transformer's layer, as published (Gu and Dao 2023), of the width that equals its size."""
    from transformers import MambaConfig

    layers = 2 * shape.num_layers

    def count(width: int) -> int:
        inner, rank = 2 * width, -(-width // 16)
        block = 3 * inner * width + inner * (4 + 1) + inner * (rank + 32) + rank * inner + inner + inner * 17 + width
        return shape.vocab_size * width + layers * block + width

    width = _closest(count, shape.num_parameters, step=2)
    return MambaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=width,
        num_hidden_layers=layers,
        state_size=16,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def _closest(count: Callable[[int], int], target: int, step: int) -> int:
    """The multiple of `step` whose (growing) `count` comes closest to `target`."""
    width = step
    while count(width + step) < target:
        width += step
    return min(width, width + step, key=lambda candidate: abs(count(candidate) - target))
