"""Memory Mosaics v2 as Hugging Face models."""

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_layers import GradientCheckpointingLayer

from tessera.base.errors import expect
from tessera.kernels import kernel_from_config
from tessera.layers.adaptive_bandwidth import AdaptiveBandwidth
from tessera.layers.learned_alpha import LearnedAlpha
from tessera.layers.swiglu import SwiGLU
from tessera.layers.value_extractors import MixedValueExtractor
from tessera.memories.long_term import LongTermMemory
from tessera.memories.pair_memory import PairMemoryState
from tessera.memories.short_term import ShortTermMemory
from tessera.models.memory_mosaic_v2.configuration import MemoryMosaicV2Config
from tessera.models.stack import NormalInitialization, StackForCausalLM, StackModel

LayerState = tuple[PairMemoryState, PairMemoryState | None]


class MemoryMosaicV2Layer(GradientCheckpointingLayer):
    """`x += short(Norm x) + long(Norm x)`, then `x += persistent(Norm x)`."""

    def __init__(self, config: MemoryMosaicV2Config):
        super().__init__()
        sizes = (config.hidden_size, config.num_heads, kernel_from_config(config.kernel))
        self.memory_norm = _norm(config)
        self.short_term = ShortTermMemory(*sizes, span=config.short_term_span)
        self.long_term = LongTermMemory(*sizes) if config.long_term_memory else None
        self.long_term_enabled = config.long_term_memory
        self.persistent_norm = _norm(config)
        self.persistent = SwiGLU(config.hidden_size, config.intermediate_size)

    def forward(
        self,
        hidden: Tensor,
        state: LayerState | None = None,
        documents: Tensor | None = None,
        keep_state: bool = False,
        long_term_delay: int | Tensor = 1,
    ) -> tuple[Tensor, LayerState | None]:
        """One layer over `hidden` (B, T, hidden); see `PairMemory.forward` for the other arguments."""
        short, long = (None, None) if state is None else state
        read = self.memory_norm(hidden)
        recalled, short = self.short_term(read, short, documents, keep_state)
        if self.long_term is not None and self.long_term_enabled:
            started = state is None or long is not None
            needed = "hold the long-term memories that are enabled now"
            expect(started, type(self).__name__, "past_key_values", needed, "none", "Read the text again.")
            remote, long = self.long_term(read, long, documents, keep_state, long_term_delay)
            recalled = recalled + remote
        else:
            long = None
        hidden = hidden + recalled
        hidden = hidden + self.persistent(self.persistent_norm(hidden))
        return hidden, (short, long) if keep_state else None

    def begun_with(self, keys: Tensor, values: Tensor) -> LayerState:
        """The state in front of a text, when both memories hold these pairs already."""
        long = None
        if self.long_term is not None and self.long_term_enabled:
            long = self.long_term.begun_with(keys, values)
        return self.short_term.begun_with(keys, values), long

    def branch_ends(self) -> list[nn.Module]:
        """The layers whose output is added to the residual stream."""
        memories = (self.short_term, self.long_term)
        return [*(memory.output for memory in memories if memory is not None), self.persistent.down]


def _norm(config: MemoryMosaicV2Config) -> nn.RMSNorm:
    return nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class MemoryMosaicV2PreTrainedModel(NormalInitialization):
    """Initialisation and plumbing of Memory Mosaics v2, and what may be changed after training."""

    config_class = MemoryMosaicV2Config
    _no_split_modules = ["MemoryMosaicV2Layer"]
    parts = {
        "embeddings": "embed_tokens",
        "lm_head": "lm_head",
        "norms": "norm.",
        "short-term": ".short_term.",
        "long-term": ".long_term.",
        "persistent": ".persistent.",
    }

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, (AdaptiveBandwidth, LearnedAlpha, MixedValueExtractor)):
            module.reset_parameters()

    def state_bytes_per_token(self, dtype: torch.dtype) -> float:
        """One key and one value per layer, in the long-term memories; the other memories do not grow."""
        long_term = self.config.num_layers * self.config.long_term_memory
        return 2 * long_term * self.config.hidden_size * dtype.itemsize

    def set_long_term_delay(self, delay: int) -> None:
        """From now on the long-term memories recall pairs of age `delay` (at inference). Part of the configuration."""
        valid = isinstance(delay, int) and delay >= 1
        expect(valid, f"{type(self).__name__}.set_long_term_delay", "delay", "be a positive integer", delay)
        self.config.long_term_delay = delay

    def disable_long_term_memory(self) -> None:
        """Leave the long-term memories out from now on, without retraining (Memory Mosaics v2, tables 2, 6 and 7).

        Their weights stay and are saved; a loaded model has them enabled. Nothing happens to a model without any.
        """
        self._switch_long_term_memory(False)

    def enable_long_term_memory(self) -> None:
        """Undo `disable_long_term_memory`."""
        where = f"{type(self).__name__}.enable_long_term_memory"
        present = self.config.long_term_memory
        expect(present, where, "the model", "have long-term memories", "long_term_memory=False in its configuration")
        self._switch_long_term_memory(True)

    def _switch_long_term_memory(self, enabled: bool) -> None:
        for module in self.modules():
            if isinstance(module, MemoryMosaicV2Layer):
                module.long_term_enabled = enabled


class MemoryMosaicV2Model(MemoryMosaicV2PreTrainedModel, StackModel):
    """The stack of memories without an lm_head. See `MemoryMosaicV2Config`."""

    def make_layer(self, config: MemoryMosaicV2Config) -> nn.Module:
        """One block of a short-term, a long-term and a persistent memory."""
        return MemoryMosaicV2Layer(config)

    def make_norm(self, config: MemoryMosaicV2Config) -> nn.Module:
        """The norm before the lm_head."""
        return _norm(config)

    def layer_arguments(self, hidden: Tensor) -> dict[str, object]:
        """The long-term delay: fixed at inference, in training one per sequence from PyTorch's (seeded) generator."""
        if not self.training:
            return {"long_term_delay": self.config.long_term_delay}
        lowest, highest = self.config.training_long_term_delay
        if lowest == highest:
            return {"long_term_delay": lowest}
        return {"long_term_delay": torch.randint(lowest, highest + 1, hidden.shape[:1], device=hidden.device)}


class MemoryMosaicV2ForCausalLM(MemoryMosaicV2PreTrainedModel, StackForCausalLM, GenerationMixin):
    """A Memory Mosaics v2 language model.

    >>> from tessera import MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM
    >>> config = MemoryMosaicV2Config(
    ...     vocab_size=256, hidden_size=64, num_layers=2, num_heads=4, intermediate_size=128, long_term_delay=8
    ... )
    >>> model = MemoryMosaicV2ForCausalLM(config)
    >>> model.disable_long_term_memory()
    """

    stack_class = MemoryMosaicV2Model
