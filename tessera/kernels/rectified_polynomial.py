"""Rectified polynomial kernels with adaptive bandwidth: alpha-entmax."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tessera.base.errors import expect
from tessera.base.shapes import Bool, Float
from tessera.kernels.base import KERNELS, PerRow, Rows, Statistics, Visible
from tessera.kernels.rows import RowKernel, row_maximum
from tessera.kernels.threshold import raise_to, threshold
from tessera.kernels.workspace import Workspace


class AdaptivePolynomial(RowKernel):
    """`w_i = [(alpha - 1) beta s_i - tau]_+^r` with tau such that the weights sum to 1 and alpha = 1 + 1/r.

    The kernel is `K_h(u) ∝ [1 - |u|^2 / h^2]_+^r` with, for every query, the bandwidth `h = sqrt(2 - 2 r tau / beta)`
    that makes its normaliser constant (Sparse Attention as Compact Kernel Regression, equations 16, 17 and 27,
    proposition 1): the weights are alpha-entmax of beta s. r -> infinity is the Gaussian kernel.

    Derivative, with u_i = (alpha - 1) beta s_i - tau: `dw_i / d(beta s_j) = u_i^(r-1) (1[i = j] - u_j^(r-1) / M)`,
    `M = sum_i u_i^(r-1)`; pairs exactly at the threshold count as outside the support.
    """

    @property
    @abstractmethod
    def order(self) -> float | Tensor:
        """The order r >= 1 of the kernel, or of each row (..., 1)."""

    @property
    def score_scale(self) -> float | Tensor:
        """`alpha - 1 = 1 / r`."""
        return 1.0 / self.order

    def weights(self, scores: Rows, visible: Visible = None) -> Rows:
        """alpha-entmax of `scores`; see `Kernel.weights`."""
        if scores.shape[-1] == 0:
            return scores
        # The weights do not change when a row moves: taking the maximum away before the scaling saves digits.
        masked = self.masked(scores, visible)
        return super().weights(masked - row_maximum(masked).detach()).to(scores.dtype)

    def forward(self, scaled: Rows, workspace: Workspace) -> tuple[Rows, Statistics]:
        """`[u - tau]_+^r`; statistics: the maximum, tau, and the sum of the slopes."""
        largest = row_maximum(scaled)
        tau, responses, slope = threshold(scaled.sub_(largest), self.order, workspace)
        return raise_to(responses, self.order, out=scaled), (largest, tau, slope)

    def backward(self, scaled: Rows, statistics: Statistics, grad: Rows, workspace: Workspace) -> tuple[Tensor, ...]:
        """`s_i (g_i - sum_j s_j g_j / sum_j s_j)` with the slopes `s_i = u_i^(r-1)`; see the class."""
        weights, slopes = self.weights_and_slopes(scaled, statistics, workspace)
        grad.mul_(slopes)
        return weights, grad.addcmul_(slopes, self.mean_of(grad, statistics), value=-1)

    def weights_and_slopes(self, scaled: Rows, statistics: Statistics, workspace: Workspace) -> tuple[Rows, Rows]:
        """`w_i` and `s_i = u_i^(r-1)`; `scaled` is overwritten."""
        largest, tau, _ = statistics
        responses = scaled.sub_(largest).sub_(tau).clamp_(min=0)
        slopes = raise_to(responses, self.order - 1, out=workspace.empty_like(scaled))
        is_linear = not isinstance(self.order, Tensor) and self.order == 1
        return responses if is_linear else responses.mul_(slopes), slopes

    @staticmethod
    def mean_of(sloped: Rows, statistics: Statistics) -> Float[Tensor, "*rows 1"]:
        """`sum_j s_j g_j / sum_j s_j` of `sloped`, the `s_j g_j`."""
        _, tau, slope = statistics
        mean = sloped.sum(-1, keepdim=True).div_(slope.clamp_min(torch.finfo(slope.dtype).tiny))
        return mean.add_(tau, alpha=0)  # NaN where the threshold is; the sign of NaN, a slope of order 1, is 0

    def score_floor(self, largest: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """`largest - r`: tau lies at most 1 below the largest score over r."""
        return largest - self.order

    def subset_floor(
        self, scores: Float[Tensor, "*rows n"], visible: Bool[Tensor, "*#rows #n"] | None = None
    ) -> PerRow:
        """`r tau` of these pairs: each further pair adds to the sum of the weights, so that tau rises."""
        scaled = self.masked(scores, visible) / self.order
        if scaled.numel() == 0:
            return scaled.new_full(scaled.shape[:-1], -torch.inf)
        largest = row_maximum(scaled)
        shifted = scaled - largest
        most = int((shifted > -1).sum(-1).max())  # tau is not below -1
        near = shifted.topk(most, sorted=False)[0] if most < shifted.shape[-1] // 2 else shifted
        tau = threshold(near, self.order, Workspace())[0] + largest
        rounding = 8 * torch.finfo(tau.dtype).eps * (1 + tau.abs())
        floor = (self.order * (tau - rounding)).squeeze(-1)
        return floor.masked_fill((near == -torch.inf).all(-1), -torch.inf)

    def bandwidth(self, scores: Rows, inverse_bandwidth: Float[Tensor, "*#rows"], visible: Visible = None) -> PerRow:
        """`h = sqrt(2 - 2 r tau / beta)` (equation 27): the distance from the query at which the weight reaches 0."""
        scaled = self.masked(scores, visible) / self.order
        largest = row_maximum(scaled)
        tau = threshold(scaled - largest, self.order, Workspace())[0] + largest
        h = (2 - 2 * (self.order * tau).squeeze(-1) / inverse_bandwidth).sqrt()
        return self.where_visible(h, scaled)


@KERNELS.register("rectified_polynomial")
@dataclass(frozen=True)
class RectifiedPolynomial(AdaptivePolynomial):
    """`AdaptivePolynomial` of any real order r >= 1, alpha = 1 + 1/r in (1, 2]."""

    name: ClassVar[str] = "rectified_polynomial"
    order: float = 2.0

    def __post_init__(self) -> None:
        right = isinstance(self.order, int | float) and 1 <= self.order < float("inf")
        expect(right, "kernel 'rectified_polynomial'", "order", "be a finite number of at least 1", self.order)


@KERNELS.register("epanechnikov")
@dataclass(frozen=True)
class Epanechnikov(AdaptivePolynomial):
    """Epanechnikov kernel of adaptive bandwidth, r = 1: sparsemax."""

    name: ClassVar[str] = "epanechnikov"
    order: ClassVar[float] = 1.0


@KERNELS.register("biweight")
@dataclass(frozen=True)
class Biweight(AdaptivePolynomial):
    """Biweight kernel of adaptive bandwidth, r = 2: 1.5-entmax."""

    name: ClassVar[str] = "biweight"
    order: ClassVar[float] = 2.0


@KERNELS.register("triweight")
@dataclass(frozen=True)
class Triweight(AdaptivePolynomial):
    """Triweight kernel of adaptive bandwidth, r = 3: 4/3-entmax."""

    name: ClassVar[str] = "triweight"
    order: ClassVar[float] = 3.0
