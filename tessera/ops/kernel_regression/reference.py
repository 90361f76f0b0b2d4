"""Kernel regression as the papers write it: all scores at once. Slow, obvious, any dtype up to float64."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from tessera.base.devices import device_type, is_exporting
from tessera.base.precision import without_autocast
from tessera.base.shapes import Float, Int
from tessera.kernels import Kernel, RowKernel
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


class QueryWeights(NamedTuple):
    """`weights` (B, H, Q, N); `num_pairs` that each query saw (B, Q); `bandwidth` h of the kernel (B, H, Q)."""

    weights: Float[Tensor, "B H Q N"]
    num_pairs: Int[Tensor, "B Q"]
    bandwidth: Float[Tensor, "B H Q"]


def chosen_query_weights(call: Call, queries: Iterable[int]) -> QueryWeights:
    """What `kernel_regression` gives to the stored pairs for the queries with these numbers, without dropout.

    `bandwidth` is in units of the distance |k - k_i|; NaN for a query that sees no pair.
    """
    of_queries, num_pairs, bandwidth = zip(*(_one(call, int(query)) for query in queries))
    return QueryWeights(torch.cat(of_queries, 2), torch.cat(num_pairs, 1), torch.cat(bandwidth, 2))


def _one(call: Call, query: int) -> tuple[Tensor, Tensor, Tensor]:
    here = slice(query, query + 1)
    documents = call.query_documents
    call = replace(
        call,
        query=call.query[:, :, here],
        kernel=_of_query(call.kernel, here),
        slope=_at(call.slope, here),
        intercept=None if call.intercept is None else _at(call.intercept, here),
        query_offset=call.query_offset + query,
        query_documents=None if documents is None else documents[:, here],
        dropout=0.0,
    )
    shape = (*call.query.shape[:2], 1, call.key.shape[2])
    visible = call.visible()
    seen = torch.ones(shape, dtype=torch.bool, device=call.query.device)
    seen = seen if visible is None else seen & visible
    beta = call.slope / call.kernel.affine(torch.ones_like(call.slope))[0]
    bandwidth = call.kernel.bandwidth(scores(call), beta.expand(shape[:3]), seen)
    return weights(call), seen[:, 0].sum(-1), bandwidth


def _at(scale: Tensor, here: slice) -> Tensor:
    """Slope or intercept, broadcast to (B, H, T), at one query."""
    return scale if scale.shape[-1:] in ((), (1,)) else scale[..., here]


def _of_query(kernel: Kernel, here: slice) -> Kernel:
    """`kernel`, whose row parameter may differ from query to query, at one query."""
    if not isinstance(kernel, RowKernel) or kernel.row_parameter is None:
        return kernel
    return kernel.with_row_parameter(_at(kernel.row_parameter.squeeze(-1), here).unsqueeze(-1))
