"""What a forward pass of a segmented model returns."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.utils import ModelOutput

from tessera.models.recurrence.state import MemoryState


@dataclass
class SegmentedOutput(ModelOutput):
    """Output of `SegmentedForCausalLM.forward`.

    Attributes:
        loss: mean cross entropy in nats, when labels were given.
        logits: (B, T, vocabulary) of the ordinary tokens, memory tokens left out.
        past_key_values: a `SegmentCache`, when `use_cache`: the memory and the open segment.
        memory_state: the memory after the last closed segment.
        segment_states: the memory after every segment, when `output_segment_states`.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    past_key_values: Any = None
    memory_state: MemoryState | None = None
    segment_states: tuple[MemoryState, ...] | None = None
