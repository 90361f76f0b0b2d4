"""Kernel regression as the papers write it: all scores at once. Slow, obvious, any dtype up to float64."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tessera.base.devices import device_type, is_exporting
from tessera.base.precision import without_autocast
from tessera.ops.kernel_regression.call import Call

NARROW = (torch.float16, torch.bfloat16)
BLOCK = 1 << 16  # numbers


def run(call: Call) -> Tensor:
    """`y_T = sum_i w_i v_i` over the visible pairs; O(T N) memory and time."""
    with without_autocast(call.value):
        blocks = _blocks(call, call.value)
        if blocks[0] is call.value:
            return weights(call) @ call.value
        parts = zip(weights(call).split(max(1, blocks[0].shape[2]), -1), blocks)
        return sum((part.float() @ block.float() for part, block in parts), call.zeros().float()).to(call.value.dtype)


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
    with without_autocast(call.query):
        wide = replace(call, query=call.query.float()) if call.query.dtype in NARROW else call
        parts = [wide.query @ block.to(wide.query.dtype).mT for block in _blocks(call, call.key)]
    scaled = wide.per_query(call.slope) * (parts[0] if len(parts) == 1 else torch.cat(parts, -1))
    return scaled if call.intercept is None else scaled + wide.per_query(call.intercept)


def _blocks(call: Call, pairs: Tensor) -> Sequence[Tensor]:
    """Keys or values (B, H, N, W); narrow ones of a query on a CPU in blocks of which a float32 copy fits the cache.

    A copy of all is ten times as slow, and so is PyTorch's product of a row with a narrow matrix.
    """
    is_one = not is_exporting() and not torch.compiler.is_compiling() and call.query.shape[2] == 1
    if not is_one or pairs.dtype not in NARROW or device_type(pairs) != "cpu":
        return (pairs,)
    return pairs.split(max(1, BLOCK // max(1, pairs[:, :, :1].numel())), 2)


def unsupported_reason(call: Call) -> str | None:
    """The reference takes every call."""
    return None
