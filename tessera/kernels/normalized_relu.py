"""Epanechnikov kernel of fixed bandwidth: normalised ReLU."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tessera.base.devices import has_values
from tessera.base.errors import expect
from tessera.kernels.base import KERNELS, AnyShape, Rows, Statistics
from tessera.kernels.rows import RowKernel, Workspace

SHRINK = 2.0**-24


@KERNELS.register("normalized_relu")
@dataclass(frozen=True)
class NormalizedReLU(RowKernel):
    """`w_i ∝ [1 - |k - k_i|^2 / h^2]_+ = [2 beta s_i + 1 - 2 beta]_+`; all zero: uniform over the visible pairs.

    Sparse Attention as Compact Kernel Regression, equations 11 and 12, with its appendix B.1 for the empty support.
    The scores are the responses before rectification, so that any slope and intercept may be given: published
    checkpoints have pairs that no bandwidth produces. A row of the uniform fall-back has no gradient.

    `min_total` is the least sum that responses are divided by, for checkpoints of published code that has one: rows
    whose responses sum to less have weights that sum to less than 1. The paper's kernel has none (0).
    """

    name: ClassVar[str] = "normalized_relu"
    # Slope 1, intercept 0: weights relu(cos) / sum, the published fixed bandwidth sqrt(2). At e^2 only pairs with a
    # cosine above 1 - 1 / (2 e^2) = 0.93 have weight, and nearly every query takes the fall-back without gradient.
    initial_inverse_bandwidth: ClassVar[float] = 0.5
    min_total: float = 0.0

    def __post_init__(self) -> None:
        is_valid = isinstance(self.min_total, int | float) and 0 <= self.min_total < float("inf")
        expect(is_valid, "kernel 'normalized_relu'", "min_total", "be a finite number of at least 0", self.min_total)

    @property
    def score_scale(self) -> float:
        """A power of two, which changes no weight: sums of scores near the largest number of float32 would overflow."""
        return SHRINK

    def affine(self, inverse_bandwidth: AnyShape) -> tuple[AnyShape, AnyShape | None]:
        """Slope `2 beta`, intercept `1 - 2 beta`: the response `1 - |u|^2 / h^2` of unit keys, before rectification."""
        return 2 * inverse_bandwidth, 1 - 2 * inverse_bandwidth

    def forward(self, scaled: Rows, workspace: Workspace) -> tuple[Rows, Statistics]:
        """Rectified scores over their sum, uniform where none is positive; statistics: the sum, scaled."""
        lacking = _is_nothing(scaled.amax(-1))
        pairs = _pairs(scaled, lacking)
        weights = scaled.clamp_(min=0)
        total = weights.sum(-1, keepdim=True)
        return self._normalized(weights, total, lacking, pairs), (total,)

    def backward(self, scaled: Rows, statistics: Statistics, grad: Rows, workspace: Workspace) -> tuple[Rows, Rows]:
        """`(g_i - sum_j w_j g_j) / sum` on the support; 0 in uniform rows."""
        (total,) = statistics
        lacking = _is_nothing(total).squeeze(-1)
        pairs = _pairs(scaled, lacking)
        support = torch.sign(scaled.clamp_(min=0), out=workspace.empty_like(scaled))
        weights = self._normalized(scaled, total, lacking, pairs)
        mean = torch.mul(weights, grad, out=workspace.empty_like(grad)).sum(-1, keepdim=True)
        mean.masked_fill_(total < SHRINK * self.min_total, 0.0)  # there the divisor is a constant
        grad.sub_(mean).mul_(support).mul_(self._scale(total) * SHRINK)
        return weights, grad

    def _scale(self, total: Tensor) -> Tensor:
        return total.clamp_min(SHRINK * self.min_total).reciprocal_().masked_fill_(_is_nothing(total), 0.0)

    def _normalized(self, responses: Tensor, total: Tensor, lacking: Tensor, pairs: Tensor) -> Tensor:
        weights = responses.mul_(self._scale(total))
        uniform = pairs / pairs.sum(-1, keepdim=True).clamp_(min=1).to(weights.dtype)
        if _as_a_whole(responses):
            return torch.where(lacking.unsqueeze(-1), uniform, weights)
        weights[lacking] = uniform
        return weights

    def score_floor(self, largest: AnyShape) -> AnyShape:
        """0; the uniform fall-back has no floor."""
        return torch.zeros_like(largest).masked_fill_(_is_nothing(SHRINK * largest), -torch.inf)


def _pairs(scaled: Tensor, lacking: Tensor) -> Tensor:
    """Which pairs there are, in the rows that lack a response; in all where their number may decide nothing."""
    return (scaled if _as_a_whole(scaled) else scaled[lacking]) > -torch.inf


def _as_a_whole(scaled: Tensor) -> bool:
    return torch.compiler.is_compiling() or not has_values(scaled)


def _is_nothing(response: Tensor) -> Tensor:
    """No response: zero or less, or so small (denormal) that its reciprocal overflows."""
    return response < torch.finfo(response.dtype).tiny
