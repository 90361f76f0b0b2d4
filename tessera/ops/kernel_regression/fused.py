"""Gaussian kernel regression on PyTorch's fused attention, where the two are the same thing."""

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from tessera.kernels.gaussian import Gaussian
from tessera.ops.kernel_regression.call import Call


def unsupported_reason(call: Call) -> str | None:
    """Why this call cannot run here, or None."""
    if type(call.kernel) is not Gaussian:
        return f"PyTorch's fused attention computes the gaussian kernel only, not {call.kernel.name!r}"
    return None


def needs_mask(call: Call) -> bool:
    """Whether `run` hands PyTorch a mask of O(T N) bytes, instead of its causal or unmasked attention."""
    num_queries, num_pairs = call.query.shape[2], call.key.shape[2]
    aligned = call.query_offset == 0 and num_pairs in (num_queries, num_queries - 1)
    newest = num_queries == 1 and call.query_offset == num_pairs > 0
    free = call.window is None and call.pair_documents is None
    return not free and not (call.sees_past_only() and (aligned or newest))


def run(call: Call) -> Tensor:
    """Softmax attention with `slope * query` as queries and scale 1.

    The strict past (delay 1, queries aligned with pairs) is ordinary causal attention of queries 2..T over pairs
    1..T-1; y_1 = 0 since the memory is empty. Anything else goes through a boolean mask, which PyTorch
    materialises: O(T N) bytes.
    """
    query = call.query * call.per_query(call.slope)
    num_queries, num_pairs = query.shape[2], call.key.shape[2]
    if call.window is None and call.pair_documents is None:
        return scaled_dot_product_attention(query, call.key, call.value, dropout_p=call.dropout, scale=1.0)
    if call.sees_past_only() and call.query_offset == 0 and num_pairs in (num_queries, num_queries - 1):
        if num_queries == 1:
            return query.new_zeros(*query.shape[:3], call.value.shape[-1])
        last = num_queries - 1
        past = scaled_dot_product_attention(
            query[:, :, 1:],
            call.key[:, :, :last],
            call.value[:, :, :last],
            dropout_p=call.dropout,
            is_causal=True,
            scale=1.0,
        )
        return pad(past, (0, 0, 1, 0))
    if call.sees_past_only() and num_queries == 1 and call.query_offset == num_pairs > 0:
        return scaled_dot_product_attention(query, call.key, call.value, dropout_p=call.dropout, scale=1.0)
    if num_pairs == 0:
        return query.new_zeros(*query.shape[:3], call.value.shape[-1])
    visible = call.visible()
    empty = ~visible.any(dim=-1, keepdim=True)
    mask = (visible | empty).expand(query.shape[0], visible.shape[1] if visible.dim() == 4 else 1, -1, -1)
    found = scaled_dot_product_attention(query, call.key, call.value, attn_mask=mask, dropout_p=call.dropout, scale=1.0)
    return torch.where(empty, 0.0, found)
