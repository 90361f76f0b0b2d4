"""RMT: the memory tokens' final states become the next segment's memory tokens (Recurrent Memory Transformer)."""

from dataclasses import dataclass

from torch import Tensor
from transformers import GenerationMixin

from tessera.models.recurrence.configuration import SegmentedConfig
from tessera.models.recurrence.layer_hooks import LayerHooks
from tessera.models.recurrence.modeling import SegmentedForCausalLM
from tessera.models.recurrence.segment_runner import MemoryTokens
from tessera.models.recurrence.state import CarriedTokens, MemoryState


class RMTConfig(SegmentedConfig):
    """Configuration of RMT; all arguments are those of `SegmentedConfig`."""

    model_type = "rmt"


@dataclass(frozen=True)
class RMTState(MemoryState):
    """The states of the memory tokens after the last layer and its final norm."""

    layers: tuple[CarriedTokens, ...]

    kind = "rmt"

    @property
    def memory_tokens(self) -> Tensor:
        """(B, M, hidden)."""
        return self.layers[0].tokens


class RMTForCausalLM(SegmentedForCausalLM, GenerationMixin):
    """Recurrent Memory Transformer (Bulatov et al. 2022, arXiv:2207.06881): a segment is [memory, tokens, memory].

    Both ends carry the same embeddings: learned ones in the first segment, then the final hidden states (after the
    last norm) at the previous segment's last memory tokens.
    """

    config_class = RMTConfig
    state_class = RMTState
    at_front = True
    is_carried = True

    def _add_memory(self, config: RMTConfig) -> None:
        self.memory_tokens = MemoryTokens(config.num_memory_tokens, self.get_input_embeddings().weight)

    def unread_layers(self, batch: int) -> list[CarriedTokens]:
        """The learned memory tokens."""
        return [CarriedTokens(self.memory_tokens(batch))]

    def next_layers(self, hooks: LayerHooks, state: RMTState) -> list[CarriedTokens]:
        """The last hidden states at the last memory tokens."""
        assert hooks.last_hidden is not None, "the call is done"
        return [CarriedTokens(hooks.last_hidden[:, -hooks.back :])]
