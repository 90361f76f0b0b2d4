"""What ARMT, RMT and PRMT share: a language model read segment by segment, with a memory carried between them.

A call walks modeling (the Hugging Face face) -> segment_runner (the loop over segments, each a call of the base model)
-> layer_hooks (what a memory does around the base's layers); collector keeps what comes of it.
"""

from tessera.base.arguments import explain_all
from tessera.models.recurrence.collector import SegmentedOutput
from tessera.models.recurrence.configuration import SegmentedConfig
from tessera.models.recurrence.modeling import SegmentedForCausalLM
from tessera.models.recurrence.segmented_input import random_segments
from tessera.models.recurrence.state import MemoryState
from tessera.models.recurrence.stream import read_stream, read_streams

__all__ = [
    "MemoryState",
    "SegmentedConfig",
    "SegmentedForCausalLM",
    "SegmentedOutput",
    "random_segments",
    "read_stream",
    "read_streams",
]


explain_all(globals(), ("random_segments", "read_stream", "read_streams"))
