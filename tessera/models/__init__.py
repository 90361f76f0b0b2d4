"""Stacks of memories as Hugging Face models. Importing any of them registers all with the Auto classes, and the
kernels as attention of any other model (`attention.py`)."""

from tessera.models import attention, auto

auto.register()
attention.register()
