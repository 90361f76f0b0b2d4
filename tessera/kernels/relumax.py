"""Epanechnikov kernel anchored at the best match: ReLUmax."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tessera.base.errors import expect
from tessera.base.shapes import Float
from tessera.kernels.base import KERNELS, AnyShape, PerRow, Rows, Statistics, Visible
from tessera.kernels.rows import RowKernel, Workspace, row_maximum


@KERNELS.register("relumax")
@dataclass(frozen=True)
class ReLUmax(RowKernel):
    """`w_i ∝ [b + beta (s_i - max_j s_j)]_+`: all pairs within the margin `b / beta` of the best match.

    Sparse Attention as Compact Kernel Regression, equations 20 to 22. The support is never empty. The gradient through
    the maximum goes to the first of the largest scores.
    """

    name: ClassVar[str] = "relumax"
    margin: float = 1.0

    def __post_init__(self) -> None:
        right = isinstance(self.margin, int | float) and 0 < self.margin < float("inf")
        expect(right, "kernel 'relumax'", "margin", "be a finite positive number", self.margin)

    def forward(self, scaled: Rows, workspace: Workspace) -> tuple[Rows, Statistics]:
        """`[b + s - max s]_+` over its sum; statistics: the maximum, its place, and one over the sum."""
        largest, where = scaled.max(-1, keepdim=True)
        largest.masked_fill_(largest == -torch.inf, 0.0)
        weights = scaled.sub_(largest).add_(self.margin).clamp_(min=0)
        scale = weights.sum(-1, keepdim=True).reciprocal_().nan_to_num_(posinf=0.0)
        return weights.mul_(scale), (largest, where, scale)

    def backward(self, scaled: Rows, statistics: Statistics, grad: Rows, workspace: Workspace) -> tuple[Rows, Rows]:
        """That of normalised ReLU on the support; minus its sum is added at the maximum."""
        largest, where, scale = statistics
        weights = scaled.sub_(largest).add_(self.margin).clamp_(min=0)
        support = torch.sign(weights, out=workspace.empty_like(weights))
        weights.mul_(scale)
        mean = torch.mul(weights, grad, out=workspace.empty_like(grad)).sum(-1, keepdim=True)
        grad.sub_(mean).mul_(support).mul_(scale)
        return weights, grad.scatter_add_(-1, where, grad.sum(-1, keepdim=True).neg_())

    def score_floor(self, largest: AnyShape) -> AnyShape:
        """`largest - b`."""
        return largest - self.margin

    def bandwidth(self, scores: Rows, inverse_bandwidth: Float[Tensor, "*#rows"], visible: Visible = None) -> PerRow:
        """`sqrt(2 - 2 m + 2 b / beta)`, m the largest similarity: where the weight reaches 0 (equation 22)."""
        masked = self.masked(scores, visible)
        h = (2 + 2 * (self.margin - row_maximum(masked).squeeze(-1)) / inverse_bandwidth).sqrt()
        return self.where_visible(h, masked)
