"""Stacks of memories as Hugging Face models.

Importing any of them makes all known to the Auto classes of transformers, and those that installed packages announce.
"""

from tessera.models import catalogue  # noqa: F401 (it registers the library's own)
from tessera.models.registry import MODELS, ModelEntry, register_model

len(MODELS)  # reads the entry points

__all__ = ["MODELS", "ModelEntry", "register_model"]
