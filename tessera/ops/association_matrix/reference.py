"""Reading and writing an association matrix as the paper writes them: any device, any dtype up to float64."""

import torch
from torch import Tensor

from tessera.ops.association_matrix.call import ReadCall, WriteCall


def read(call: ReadCall) -> Tensor:
    """`A^T phi(q) / (z . phi(q) + eps)` for every query."""
    return _recall(call.matrix, call.normaliser, call.query, call.epsilon)[0]


def write(call: WriteCall) -> tuple[Tensor, Tensor]:
    """The new A and z, all pairs at once or one after the other."""
    if call.order == "parallel":
        return _write_together(call, call.matrix, call.normaliser, call.empty, slice(None))
    matrix, normaliser, empty = call.matrix, call.normaliser, call.empty
    for i in range(call.key.shape[1]):
        matrix, normaliser = _write_together(call, matrix, normaliser, empty, slice(i, i + 1))
        empty = torch.zeros_like(empty)
    return matrix, normaliser


def refuse(call: ReadCall | WriteCall) -> str | None:
    """The reference takes every call."""
    return None


def _recall(matrix: Tensor, normaliser: Tensor, features: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    denominator = features @ normaliser.unsqueeze(-1) + epsilon
    return (features @ matrix) / denominator, denominator


def _write_together(
    call: WriteCall, matrix: Tensor, normaliser: Tensor, empty: Tensor, pairs: slice
) -> tuple[Tensor, Tensor]:
    key, value, strength = call.key[:, pairs], call.value[:, pairs], call.strength[:, pairs]
    # An empty memory recalls 0 / eps = 0, so only gamma needs to know about it.
    recalled, denominator = _recall(matrix, normaliser, key, call.epsilon)
    new = strength.unsqueeze(-1) * (value - recalled)
    gained = key
    if call.correction:
        gamma = 1 - denominator / (key.square().sum(-1, keepdim=True) + call.epsilon)
        gamma = gamma.clamp(0, 1).detach()
        gained = torch.where(empty[:, None, None], torch.ones_like(gamma), gamma) * key
    return matrix + key.transpose(1, 2) @ new, normaliser + gained.sum(1)
