"""Recurrent baselines: linear transformer, RetNet, gated linear attention."""

from tessera.models.linear_attention.configuration import LinearAttentionConfig
from tessera.models.linear_attention.modeling import LinearAttentionForCausalLM, LinearAttentionModel

__all__ = ["LinearAttentionConfig", "LinearAttentionForCausalLM", "LinearAttentionModel"]
