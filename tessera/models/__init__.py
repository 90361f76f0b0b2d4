"""Stacks of memories as Hugging Face models.

Importing any of them makes all known to the Auto classes of transformers, and those that installed packages announce;
and the kernels known as attention of any other model (`attention.py`), and our layers to PEFT (`adapters.py`).
"""

from tessera.models import adapters, attention, catalogue, classification  # noqa: F401 (the catalogue registers the library's own)
from tessera.models.registry import MODELS, ModelEntry, register_model

len(MODELS)  # reads the entry points
attention.register()
adapters.register()
classification.register()

__all__ = ["MODELS", "ModelEntry", "register_model"]
