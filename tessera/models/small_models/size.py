"""The size that models are compared at, and the model of a name at that size."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from tessera.base.errors import TesseraError, did_you_mean, expect
from tessera.kernels import kernel_from_config
from tessera.models.registry import MODELS

# Fields of `ModelSize` that the models check.
NO_COUNTS = (
    "kernel",
    "initializer_range",
    "memory_initializer_range",
    "dropout",
    "contextual_dropout",
    "initialization",
)


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
            is_count = isinstance(value, int) and not isinstance(value, bool) and value >= least
            expect(is_count, where, name, "be a positive integer", repr(value))
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

    Raises:
        TesseraError: an unknown model or kernel, or impossible sizes.
    """
    entry, shape = MODELS[name], ModelSize(**size)
    if entry.of_size is None:
        known = [name for name, entry in MODELS.items() if entry.of_size is not None]
        raise TesseraError(f"model {name!r} has no rule for its size. {did_you_mean(name, known)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return entry.of_size(shape)
