"""Memory Mosaics (v1) as Hugging Face models."""

import math

from torch import Tensor, nn
from torch.nn.functional import dropout
from transformers import GenerationMixin
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from tessera.kernels import kernel_from_config
from tessera.layers.bandwidth import Bandwidth
from tessera.layers.leaky_key_extractor import LeakyKeyExtractor
from tessera.layers.learned_alpha import LearnedAlpha
from tessera.layers.scaled_output import ScaledOutput
from tessera.layers.value_extractors import MixedValueExtractor
from tessera.memories.contextual import ContextualMemory
from tessera.memories.pair_memory import PairMemoryState
from tessera.memories.persistent import PersistentMemory, PersistentState
from tessera.models.memory_mosaic.configuration import MemoryMosaicConfig
from tessera.models.stack import StackForCausalLM, StackModel, StackPreTrainedModel


class MemoryMosaicLayer(GradientCheckpointingLayer):
    """`x += contextual(Norm x)`, then `x += persistent(Norm x)`; with norm_position "post": `x = Norm x; x += f(x)`."""

    def __init__(self, config: MemoryMosaicConfig):
        super().__init__()
        self.post_norm = config.norm_position == "post"
        self.residual_dropout = config.residual_dropout
        self.contextual_norm = _norm(config)
        self.contextual = ContextualMemory(
            config.hidden_size,
            config.num_heads,
            kernel_from_config(config.kernel),
            config.value_extractor,
            norm_eps=config.key_norm_eps,
            weight_dropout=_own_or_shared(config.contextual_weight_dropout, config.weight_dropout),
            free_intercept=config.free_intercept,
            delay=config.contextual_delay,
            mean_keys=config.mean_keys,
            bias=config.bias,
            head_dropout=config.head_dropout,
        )
        self.persistent = None
        if config.num_persistent_slots:
            self.persistent_norm = _norm(config)
            self.persistent = PersistentMemory(
                config.hidden_size,
                config.num_heads,
                config.num_persistent_slots,
                config.num_persistent_banks,
                kernel_from_config(config.persistent_kernel),
                norm_eps=_own_or_shared(config.persistent_key_norm_eps, config.key_norm_eps),
                weight_dropout=config.weight_dropout,
                bias=config.bias,
                head_dropout=config.head_dropout,
            )

    def forward(
        self,
        hidden: Tensor,
        state: "tuple[PairMemoryState, PersistentState | None] | None" = None,
        documents: Tensor | None = None,
        keep_state: bool = False,
    ) -> tuple[Tensor, tuple[PairMemoryState, PersistentState | None] | None]:
        """One layer over `hidden` (B, T, hidden); see `PairMemory.forward` for the other arguments."""
        contextual, persistent = (None, None) if state is None else state
        hidden, contextual = self._add(hidden, self.contextual_norm, self.contextual, contextual, documents, keep_state)
        if self.persistent is not None:
            hidden, persistent = self._add(
                hidden, self.persistent_norm, self.persistent, persistent, documents, keep_state
            )
        return hidden, (contextual, persistent) if keep_state else None

    def begun_with(self, keys: Tensor, values: Tensor) -> tuple[PairMemoryState, None]:
        """The state in front of a text, when the contextual memory holds these pairs already."""
        return self.contextual.begun_with(keys, values), None

    def _add(self, hidden, norm, memory, state, documents, keep_state):
        read = norm(hidden)
        recalled, state = memory(read, state, documents, keep_state)
        if self.residual_dropout:
            recalled = dropout(recalled, self.residual_dropout, self.training)
        return (read if self.post_norm else hidden) + recalled, state


def _own_or_shared(own: float | None, shared: float) -> float:
    return shared if own is None else own


def _norm(config: MemoryMosaicConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=config.bias)


class MemoryMosaicPreTrainedModel(StackPreTrainedModel):
    """Initialisation and plumbing of Memory Mosaics."""

    config_class = MemoryMosaicConfig
    _no_split_modules = ["MemoryMosaicLayer"]
    parts = {
        "embeddings": "embed_tokens",
        "lm_head": "lm_head",
        "norms": "norm.",
        "contextual": ".contextual.",
        "persistent": ".persistent.",
    }

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            init.normal_(module.weight, 0.0, self._std(module))
            if getattr(module, "bias", None) is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, ScaledOutput):
            branches = self.config.num_layers if self._by_fan_in() else 2 * self.config.num_layers
            init.normal_(module.projection.weight, 0.0, self._std(module.projection) / math.sqrt(branches))
        learned = (Bandwidth, LearnedAlpha, LeakyKeyExtractor, MixedValueExtractor, PersistentMemory, ScaledOutput)
        if isinstance(module, learned):
            module.reset_parameters()

    def _by_fan_in(self) -> bool:
        return self.config.initialization == "fan_in"

    def _std(self, module: nn.Linear | nn.Embedding) -> float:
        if not self._by_fan_in():
            return self.config.initializer_range
        if isinstance(module, nn.Embedding) and not self.config.tie_word_embeddings:
            return 1.0
        return 1 / math.sqrt(getattr(module, "fan_in", module.weight.shape[1]))


class MemoryMosaicModel(MemoryMosaicPreTrainedModel, StackModel):
    """The stack of memories without an lm_head. See `MemoryMosaicConfig`."""

    def make_layer(self, config: MemoryMosaicConfig) -> nn.Module:
        """One block of a contextual and a persistent memory."""
        return MemoryMosaicLayer(config)

    def make_norm(self, config: MemoryMosaicConfig) -> nn.Module:
        """The norm before the lm_head."""
        return _norm(config)


class MemoryMosaicForCausalLM(MemoryMosaicPreTrainedModel, StackForCausalLM, GenerationMixin):
    """A Memory Mosaic language model.

    >>> from tessera import MemoryMosaicConfig, MemoryMosaicForCausalLM
    >>> config = MemoryMosaicConfig(vocab_size=256, hidden_size=64, num_layers=2, num_heads=4, num_persistent_slots=32)
    >>> model = MemoryMosaicForCausalLM(config)
    """

    stack_class = MemoryMosaicModel
