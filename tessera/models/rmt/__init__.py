"""RMT: the memory tokens' final states become the next segment's memory tokens (Recurrent Memory Transformer)."""

from tessera.models.rmt.modeling import RMTConfig, RMTForCausalLM, RMTState

__all__ = ["RMTConfig", "RMTForCausalLM", "RMTState"]
