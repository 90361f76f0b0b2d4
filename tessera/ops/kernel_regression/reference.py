"""Kernel regression as the papers write it: all scores at once. Slow, obvious, any dtype up to float64."""

from dataclasses import replace

import torch
from torch import Tensor

from tessera.base.precision import without_autocast
from tessera.ops.kernel_regression.call import Call


def run(call: Call) -> Tensor:
    """`y_T = sum_i w_i v_i` over the visible pairs; O(T N) memory and time."""
    with without_autocast(call.value):
        return weights(call) @ call.value


def weights(call: Call) -> Tensor:
    """The weights w (B, H, T, N) themselves, dropout included."""
    pair_scores = scores(call)
    visible = call.visible()
    result = call.kernel.weights(pair_scores, visible if visible is None else visible.expand(pair_scores.shape))
    result = result.to(call.query.dtype)
    return torch.dropout(result, call.dropout, train=True) if call.dropout else result


def scores(call: Call) -> Tensor:
    """`slope * (query . key_i) + intercept` (B, H, T, N); float32 for narrower inputs, as in other implementations.

    A score of 50 rounded to bfloat16 is off by an eighth, and so is its weight.
    """
    if call.query.dtype in (torch.float16, torch.bfloat16):
        call = replace(call, query=call.query.float(), key=call.key.float())
    with without_autocast(call.query):
        similarities = call.query @ call.key.transpose(-1, -2)
    scaled = call.per_query(call.slope) * similarities
    return scaled if call.intercept is None else scaled + call.per_query(call.intercept)


def unsupported_reason(call: Call) -> str | None:
    """The reference takes every call."""
    return None
