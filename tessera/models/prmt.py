"""PRMT: every layer passes its memory tokens' states to the next segment (parallel-memory RMT)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import GenerationMixin

from tessera.models.recurrence.configuration import SegmentedConfig
from tessera.models.recurrence.layer_hooks import LayerHooks
from tessera.models.recurrence.modeling import SegmentedForCausalLM
from tessera.models.recurrence.segment_runner import LayerModules, MemoryTokens
from tessera.models.recurrence.state import CarriedTokens, MemoryState

RECURRENCES = ("own_layer", "published")


class PRMTConfig(SegmentedConfig):
    r"""Configuration of PRMT.

    Args:
        recurrence: "own_layer": layer l gets its own output of the previous segment. "published": what the
            published code does by an aliasing mistake: every layer but the last gets what layer l + 1 was given in
            the previous segment. Only for its checkpoints.
        memory_initializer_range: standard deviation of the memory tokens at the start (published: 1); None: that of the
            token embeddings. The others: see `SegmentedConfig`.
    """

    model_type = "prmt"

    recurrence: str = "own_layer"
    memory_initializer_range: float | None = None

    def problems(self) -> list[str]:
        """See `StrictConfig`."""
        return super().problems() + self.one_of(recurrence=RECURRENCES)


@dataclass(frozen=True)
class PRMTState(MemoryState):
    """What every layer's memory tokens are given in the next segment."""

    layers: tuple[CarriedTokens, ...]

    kind = "prmt"

    @property
    def memory_tokens(self) -> Tensor:
        """(L, B, M, hidden)."""
        return torch.stack([layer.tokens for layer in self.layers])


class ParallelHooks(LayerHooks):
    """Before each layer its memory tokens are the carried ones; its outputs there are kept in `written`."""

    def __init__(self, states: tuple[CarriedTokens, ...], front: int, back: int):
        super().__init__(front, back)
        self.states = states
        self.written: list[CarriedTokens] = list(states)

    def before(self, index: int, hidden: Tensor) -> Tensor:
        """The ordinary tokens between the carried ones."""
        carried = self.states[index].tokens.to(hidden)
        ordinary = hidden[:, self.front : hidden.shape[1] - self.back]
        parts = [carried if self.front else None, ordinary, carried if self.back else None]
        return torch.cat([part for part in parts if part is not None], 1)

    def after(self, index: int, hidden: Tensor) -> None:
        """Keep the outputs at the last memory tokens."""
        if self.back:
            self.written[index] = CarriedTokens(hidden[:, -self.back :])


class PRMTForCausalLM(SegmentedForCausalLM, GenerationMixin):
    """RMT with layerwise memory (ARMT paper, appendix B.2): segments are [memory, tokens, memory] in every layer.

    Before layer l both ends are overwritten by what was carried to layer l: learned tokens in the first segment, then
    its own output at the previous segment's last memory tokens.
    """

    config_class = PRMTConfig
    state_class = PRMTState
    at_front = True
    is_carried = True

    def _add_memory(self, config: PRMTConfig) -> None:
        weight = self.get_input_embeddings().weight
        self.memory_tokens = LayerModules(
            MemoryTokens(config.num_memory_tokens, weight, config.memory_initializer_range)
            for _ in range(config.num_hidden_layers)
        )

    def unread_layers(self, batch: int) -> list[CarriedTokens]:
        """Every layer's learned memory tokens."""
        return [CarriedTokens(tokens(batch)) for tokens in self.memory_tokens.in_order()]

    def hooks(self, state: PRMTState, is_empty: bool, front: int, back: int, openings: object) -> ParallelHooks:
        """See `ParallelHooks`."""
        return ParallelHooks(state.layers, front, back)

    def next_layers(self, hooks: ParallelHooks, state: PRMTState) -> list[CarriedTokens]:
        """Every layer's outputs at the memory tokens go to itself (see `PRMTConfig.recurrence`)."""
        if self.config.recurrence == "published":
            return [*state.layers[1:], hooks.written[-1]]
        return hooks.written
