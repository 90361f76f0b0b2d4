"""The weights of a few queries of a call, for inspection: O(N) memory per query."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from tessera.base.shapes import Float, Int
from tessera.ops.kernel_regression import reference
from tessera.ops.kernel_regression.call import Call


class QueryWeights(NamedTuple):
    """`weights` (B, H, Q, N); `num_pairs` that each query saw (B, Q); `bandwidth` h of the kernel (B, H, Q)."""

    weights: Float[Tensor, "B H Q N"]
    num_pairs: Int[Tensor, "B Q"]
    bandwidth: Float[Tensor, "B H Q"]


def chosen_query_weights(call: Call, queries: Iterable[int]) -> QueryWeights:
    """What `kernel_regression` gives to the stored pairs for the queries with these numbers, without dropout.

    `bandwidth` is in units of the distance |k - k_i|; NaN for a query that sees no pair.
    """
    parts = [_one(call, int(query)) for query in queries]
    weights, num_pairs, bandwidth = zip(*parts)
    return QueryWeights(torch.cat(weights, 2), torch.cat(num_pairs, 1), torch.cat(bandwidth, 2))


def _one(call: Call, query: int) -> tuple[Tensor, Tensor, Tensor]:
    here = slice(query, query + 1)
    documents = call.query_documents
    call_of_query = replace(
        call,
        query=call.query[:, :, here],
        slope=_at(call.slope, here),
        intercept=None if call.intercept is None else _at(call.intercept, here),
        query_offset=call.query_offset + query,
        query_documents=None if documents is None else documents[:, here],
        dropout=0.0,
    )
    batch, heads, _, pairs = *call_of_query.query.shape[:3], call_of_query.key.shape[2]
    visible = call_of_query.visible()
    seen = torch.ones(batch, heads, 1, pairs, dtype=torch.bool, device=call_of_query.query.device)
    seen = seen if visible is None else seen & visible
    scores = reference.scores(call_of_query)
    beta = call_of_query.slope / call_of_query.kernel.affine(torch.ones_like(call_of_query.slope))[0]
    bandwidth = call_of_query.kernel.bandwidth(scores, beta.expand(batch, heads, 1), seen)
    return reference.weights(call_of_query), seen[:, 0].sum(-1), bandwidth


def _at(scale: Tensor, here: slice) -> Tensor:
    """Slope or intercept, broadcast to (B, H, T), at one query."""
    return scale[..., here] if scale.shape[-1] > 1 else scale
