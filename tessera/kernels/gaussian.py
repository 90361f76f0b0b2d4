"""Gaussian kernel: softmax over scores."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tessera.kernels.base import KERNELS, Rows, Statistics, Visible
from tessera.kernels.rows import RowKernel, Workspace, row_maximum

LOG2_E = math.log2(math.e)


@KERNELS.register("gaussian")
@dataclass(frozen=True)
class Gaussian(RowKernel):
    """`w_i ∝ exp(beta s_i)`: Gaussian kernel smoothing of unit keys (Memory Mosaics, equations 2 and 3).

    `exp(-beta |k - k_i|^2 / 2) = exp(beta s_i) exp(-beta)`, and the constant cancels. Full support.
    """

    name: ClassVar[str] = "gaussian"

    def weights(self, scores: Rows, visible: Visible = None) -> Rows:
        """`softmax(scores)`, 0 in rows without visible pair."""
        if visible is None:
            return torch.softmax(scores, dim=-1)
        empty = ~visible.any(dim=-1, keepdim=True)
        weights = torch.softmax(scores.masked_fill(~visible, -torch.inf).masked_fill(empty, 0.0), dim=-1)
        return weights.masked_fill(~visible, 0.0)

    def forward(self, scaled: Rows, workspace: Workspace) -> tuple[Rows, Statistics]:
        """`softmax(scaled)`; statistics: the maximum and one over the sum."""
        largest = row_maximum(scaled)
        weights = _exp(scaled.sub_(largest))
        scale = weights.sum(-1, keepdim=True).reciprocal_().nan_to_num_(posinf=0.0)
        return weights.mul_(scale), (largest, scale)

    def backward(self, scaled: Rows, statistics: Statistics, grad: Rows, workspace: Workspace) -> tuple[Rows, Rows]:
        """`w_i (g_i - sum_j w_j g_j)`."""
        largest, scale = statistics
        weights = _exp(scaled.sub_(largest)).mul_(scale)
        grad.mul_(weights)
        return weights, grad.addcmul_(weights, grad.sum(-1, keepdim=True), value=-1)


def _exp(x: Tensor) -> Tensor:
    """`e^x` in place, 0 where that underflows.

    On CPUs PyTorch's exp is several times slower than its exp2, and denormal numbers slow down all that reads them.
    """
    smallest = math.log2(torch.finfo(x.dtype).tiny)
    return torch.threshold_(x.mul_(LOG2_E), smallest, -torch.inf).exp2_()
