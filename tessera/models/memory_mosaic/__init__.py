"""Memory Mosaics (v1): contextual and persistent memories in every block."""

from tessera.models.memory_mosaic.configuration import MemoryMosaicConfig
from tessera.models.memory_mosaic.modeling import MemoryMosaicForCausalLM, MemoryMosaicModel

__all__ = ["MemoryMosaicConfig", "MemoryMosaicForCausalLM", "MemoryMosaicModel"]
