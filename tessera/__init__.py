"""Tessera: sequence models made of associative memories."""

from tessera.errors import TesseraError
from tessera.models import auto
from tessera.models.memory_mosaic import MemoryMosaicConfig, MemoryMosaicForCausalLM, MemoryMosaicModel
from tessera.models.memory_mosaic_v2 import MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM, MemoryMosaicV2Model

__version__ = "0.1.0"

auto.register()

__all__ = [
    "MemoryMosaicConfig",
    "MemoryMosaicForCausalLM",
    "MemoryMosaicModel",
    "MemoryMosaicV2Config",
    "MemoryMosaicV2ForCausalLM",
    "MemoryMosaicV2Model",
    "TesseraError",
    "__version__",
]
