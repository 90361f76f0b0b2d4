"""PRMT: every layer passes its memory tokens' states to the next segment (parallel-memory RMT)."""

from tessera.models.prmt.modeling import PRMTConfig, PRMTForCausalLM, PRMTState

__all__ = ["PRMTConfig", "PRMTForCausalLM", "PRMTState"]
