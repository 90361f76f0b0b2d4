"""What every memory stored, recalled and predicted."""

from tessera.base.arguments import explain_all
from tessera.inspection.page import notebook_html
from tessera.inspection.profile import recall_map, recalled_text, recency_profile
from tessera.inspection.recall import Recall, Site, find_sites, recall_weights
from tessera.inspection.removal import Removal, loss_of
from tessera.inspection.trace import MemoryTrace, SegmentTrace, StoredMemory, Trace
from tessera.inspection.tracing import trace, trace_memory

# Set here, so that traces know nothing of pages, which are made of them.
Trace._repr_html_ = notebook_html

__all__ = [
    "MemoryTrace",
    "Recall",
    "Removal",
    "SegmentTrace",
    "Site",
    "StoredMemory",
    "Trace",
    "find_sites",
    "loss_of",
    "recall_map",
    "recall_weights",
    "recalled_text",
    "recency_profile",
    "trace",
    "trace_memory",
]

explain_all(globals(), __all__)
