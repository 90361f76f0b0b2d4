"""RMT as a Hugging Face model around any causal language model."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import GenerationMixin

from tessera.models.recurrence.configuration import SegmentedConfig
from tessera.models.recurrence.handed_tokens import HandedTokens
from tessera.models.recurrence.layer_pass import LayerPass
from tessera.models.recurrence.memory_tokens import MemoryTokens
from tessera.models.recurrence.model import SegmentedForCausalLM
from tessera.models.recurrence.state import MemoryState


class RMTConfig(SegmentedConfig):
    """Configuration of RMT; all arguments are those of `SegmentedConfig`."""

    model_type = "rmt"


@dataclass(frozen=True)
class RMTState(MemoryState):
    """The states of the memory tokens after the last layer and its final norm."""

    kind = "rmt"
    layer_state = HandedTokens

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
    memory_at_front = True

    def _add_memory(self, config: RMTConfig) -> None:
        self.memory_tokens = MemoryTokens(config.num_memory_tokens, self.get_input_embeddings().weight)

    def empty_memory(self, batch: int) -> RMTState:
        """The memory before anything was read: the learned memory tokens."""
        counts = torch.zeros(batch, dtype=torch.long, device=self.memory_tokens.tokens.device)
        return RMTState((HandedTokens(self.memory_tokens(batch)),), counts, counts)

    def _memory_embeddings(self, state: RMTState) -> Tensor:
        return state.memory_tokens

    def _layer_pass(self, state: RMTState, blank: bool, front: int, back: int) -> LayerPass:
        return LayerPass(front, back)

    def _handed_on(self, layer_pass: LayerPass, state: RMTState) -> list[HandedTokens]:
        return [HandedTokens(layer_pass.last_hidden[:, -layer_pass.back :])]
