"""Tessera: sequence models made of associative memories."""

from tessera.errors import TesseraError
from tessera.models import auto
from tessera.models.memory_mosaic import MemoryMosaicConfig, MemoryMosaicForCausalLM, MemoryMosaicModel

__version__ = "0.1.0"

auto.register()

__all__ = ["MemoryMosaicConfig", "MemoryMosaicForCausalLM", "MemoryMosaicModel", "TesseraError", "__version__"]
