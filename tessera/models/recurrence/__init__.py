"""What ARMT, RMT and PRMT share: a language model read segment by segment, with a memory handed on between them."""

from tessera.models.recurrence.configuration import SegmentedConfig
from tessera.models.recurrence.model import SegmentedForCausalLM
from tessera.models.recurrence.output import SegmentedOutput
from tessera.models.recurrence.reader import read_stream
from tessera.models.recurrence.segments import random_segments
from tessera.models.recurrence.state import MemoryState

__all__ = [
    "MemoryState",
    "SegmentedConfig",
    "SegmentedForCausalLM",
    "SegmentedOutput",
    "random_segments",
    "read_stream",
]
