"""ARMT: layerwise association matrices (Associative Recurrent Memory Transformer)."""

from tessera.models.armt.configuration import ARMTConfig
from tessera.models.armt.modeling import ARMTForCausalLM
from tessera.models.armt.state import ARMTState

__all__ = ["ARMTConfig", "ARMTForCausalLM", "ARMTState"]
