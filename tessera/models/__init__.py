"""Stacks of memories as Hugging Face models. Importing any of them registers all with the Auto classes."""

from tessera.models import auto

auto.register()
