"""PRMT: every layer hands its memory tokens' states on to itself (parallel-memory RMT)."""

from tessera.models.prmt.modeling import PRMTConfig, PRMTForCausalLM, PRMTState

__all__ = ["PRMTConfig", "PRMTForCausalLM", "PRMTState"]
