"""PRMT as a Hugging Face model around any causal language model."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import GenerationMixin

from tessera.models.recurrence.configuration import SegmentedConfig
from tessera.models.recurrence.handed_tokens import HandedTokens
from tessera.models.recurrence.layer_pass import LayerPass
from tessera.models.recurrence.memory_tokens import MemoryTokens
from tessera.models.recurrence.model import SegmentedForCausalLM
from tessera.models.recurrence.state import MemoryState

RECURRENCES = ("own_layer", "published")


class PRMTConfig(SegmentedConfig):
    r"""Configuration of PRMT.

    Args:
        recurrence: "own_layer": layer l is handed its own output of the previous segment. "published": what the
            published code does by an aliasing mistake: every layer but the last is handed what layer l + 1 was given
            in the previous segment. Only for its checkpoints. The others: see `SegmentedConfig`.
    """

    model_type = "prmt"

    recurrence: str = "own_layer"

    def problems(self) -> list[str]:
        """See `StrictConfig`."""
        found = super().problems()
        if self.recurrence not in RECURRENCES:
            found.append(f"recurrence must be one of {', '.join(RECURRENCES)}; got {self.recurrence!r}.")
        return found


@dataclass(frozen=True)
class PRMTState(MemoryState):
    """What every layer's memory tokens are given in the next segment."""

    kind = "prmt"
    layer_state = HandedTokens

    @property
    def memory_tokens(self) -> Tensor:
        """(L, B, M, hidden)."""
        return torch.stack([layer.tokens for layer in self.layers])


class ParallelPass(LayerPass):
    """Before each layer its memory tokens are what it was handed; its outputs there are kept in `written`."""

    def __init__(self, states: tuple[HandedTokens, ...], front: int, back: int):
        super().__init__(front, back)
        self.states = states
        self.written: list[HandedTokens] = list(states)

    def before(self, index: int, hidden: Tensor) -> Tensor:
        """The tokens between memory tokens that were handed on."""
        given = self.states[index].tokens
        ends = [given if self.front else None, hidden[:, self.front : hidden.shape[1] - self.back]]
        return torch.cat([part for part in [*ends, given if self.back else None] if part is not None], 1)

    def after(self, index: int, hidden: Tensor) -> None:
        """Keep the outputs at the last memory tokens."""
        if self.back:
            self.written[index] = HandedTokens(hidden[:, -self.back :])


class PRMTForCausalLM(SegmentedForCausalLM, GenerationMixin):
    """RMT with layerwise memory (ARMT paper, appendix B.2): segments are [memory, tokens, memory] in every layer.

    Before layer l both ends are overwritten by what layer l was handed: learned tokens in the first segment, then its
    own output at the previous segment's last memory tokens.
    """

    config_class = PRMTConfig
    state_class = PRMTState
    memory_at_front = True

    def _add_memory(self, config: PRMTConfig) -> None:
        weight = self.get_input_embeddings().weight
        self.memory_tokens = nn.ModuleList(
            MemoryTokens(config.num_memory_tokens, weight) for _ in range(config.num_hidden_layers)
        )

    def empty_memory(self, batch: int) -> PRMTState:
        """The memory before anything was read: every layer's learned memory tokens."""
        counts = torch.zeros(batch, dtype=torch.long, device=self.memory_tokens[0].tokens.device)
        return PRMTState(tuple(HandedTokens(tokens(batch)) for tokens in self.memory_tokens), counts, counts)

    def _memory_embeddings(self, state: PRMTState) -> Tensor:
        # Overwritten before the first layer; only the shape matters.
        return state.layers[0].tokens

    def _layer_pass(self, state: PRMTState, blank: bool, front: int, back: int) -> ParallelPass:
        return ParallelPass(state.layers, front, back)

    def _handed_on(self, layer_pass: ParallelPass, state: PRMTState) -> list[HandedTokens]:
        if self.config.recurrence == "published":
            return [*state.layers[1:], layer_pass.written[-1]]
        return layer_pass.written
