"""What every memory stored, recalled and predicted."""

from tessera.inspection.page import notebook_html
from tessera.inspection.profile import recall_map, recency_profile
from tessera.inspection.recall import Recall, recall_weights
from tessera.inspection.removal import Removal, loss_of
from tessera.inspection.sites import Site, find_sites
from tessera.inspection.trace import MemoryTrace, Trace
from tessera.inspection.tracing import trace

# Set here, so that traces know nothing of pages, which are made of them.
Trace._repr_html_ = notebook_html

__all__ = [
    "MemoryTrace",
    "Recall",
    "Removal",
    "Site",
    "Trace",
    "find_sites",
    "loss_of",
    "recall_map",
    "recall_weights",
    "recency_profile",
    "trace",
]
