"""Memory Mosaics v2: short-term, long-term and persistent memories in every block."""

from tessera.models.memory_mosaic_v2.configuration import MemoryMosaicV2Config
from tessera.models.memory_mosaic_v2.modeling import MemoryMosaicV2ForCausalLM, MemoryMosaicV2Model

__all__ = ["MemoryMosaicV2Config", "MemoryMosaicV2ForCausalLM", "MemoryMosaicV2Model"]
