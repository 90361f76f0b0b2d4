"""ARMT, RMT and PRMT in one place: `tessera.armt.wrap` gives any Hugging Face decoder a memory."""

from tessera.models.armt import ARMTConfig, ARMTForCausalLM, ARMTState
from tessera.models.prmt import PRMTConfig, PRMTForCausalLM, PRMTState
from tessera.models.rmt import RMTConfig, RMTForCausalLM, RMTState
from tessera.models.wrapping import wrap, wrap_prmt, wrap_rmt

__all__ = [
    "ARMTConfig",
    "ARMTForCausalLM",
    "ARMTState",
    "PRMTConfig",
    "PRMTForCausalLM",
    "PRMTState",
    "RMTConfig",
    "RMTForCausalLM",
    "RMTState",
    "wrap",
    "wrap_prmt",
    "wrap_rmt",
]
