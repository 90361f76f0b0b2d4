"""Reading and writing an association matrix as the paper writes them: any device, any dtype up to float64."""

import torch
from torch import Tensor

from tessera.ops.association_matrix.call import ReadCall, WriteCall


def run(call: ReadCall | WriteCall) -> Tensor | tuple[Tensor, Tensor]:
    """What a reading answers, or the memory that a writing leaves."""
    if isinstance(call, ReadCall):
        return (call.query @ call.matrix.to(call.query.dtype)) / denominator(call.query, call.normaliser, call.eps)
    if call.order == "parallel":
        return _write_together(call, call.matrix, call.normaliser, call.empty, slice(None))
    matrix, normaliser, empty = call.matrix, call.normaliser, call.empty
    for i in range(call.key.shape[1]):
        matrix, normaliser = _write_together(call, matrix, normaliser, empty, slice(i, i + 1))
        empty = empty & (call.strength[:, i] == 0) if call.gate_normaliser else torch.zeros_like(empty)
    return matrix, normaliser


def _write_together(
    call: WriteCall, matrix: Tensor, normaliser: Tensor, empty: Tensor, pairs: slice
) -> tuple[Tensor, Tensor]:
    key, value, strength = call.key[:, pairs], call.value[:, pairs], call.strength[:, pairs]
    # An empty memory recalls 0 / eps = 0, so only gamma needs to know about it.
    total = denominator(key, divisor(normaliser, empty) if call.gate_normaliser else normaliser, call.eps)
    gained = growth(key, total, empty, call.correction, call.eps) * key
    if call.gate_normaliser:
        gained = gained * (strength > 0).unsqueeze(-1)
    new = strength.unsqueeze(-1) * (value - (key @ matrix.to(key.dtype)) / total)
    return matrix + key.transpose(1, 2) @ new, normaliser + gained.sum(1)


def growth(key: Tensor, denominator: Tensor, empty: Tensor, correction: bool, eps: float) -> Tensor:
    """gamma (B, M, 1), how much of each pair's features the normaliser gains; without a gradient."""
    if not correction:
        return torch.ones_like(key[..., :1])
    gamma = 1 - denominator / (key.square().sum(-1, keepdim=True) + eps)
    gamma = gamma.clamp(0, 1).detach()
    return torch.where(empty[:, None, None], torch.ones_like(gamma), gamma)


def divisor(normaliser: Tensor, empty: Tensor) -> Tensor:
    """z, and 1 in place of the 0 of an empty memory: what it recalls is 0 all the same, and has a finite gradient.

    Where pairs of strength 0 write nothing, a memory can stay empty for many segments, and a straight-through gradient
    of those strengths would be divided by eps once in each.
    """
    return torch.where(empty.unsqueeze(-1), torch.ones_like(normaliser), normaliser)


def denominator(features: Tensor, normaliser: Tensor, eps: float) -> Tensor:
    """`z . f + eps` (B, M, 1)."""
    return features @ normaliser.to(features.dtype).unsqueeze(-1) + eps
