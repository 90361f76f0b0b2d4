"""ARMT: layerwise association matrices (Associative Recurrent Memory Transformer)."""

from tessera.models.armt.modeling import ARMTConfig, ARMTForCausalLM, ARMTState

__all__ = ["ARMTConfig", "ARMTForCausalLM", "ARMTState"]
