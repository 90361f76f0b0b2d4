"""alpha-entmax whose alpha is learned: the kernel that a configuration names, and the one whose rows have alphas."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tessera.base.errors import expect
from tessera.base.shapes import Float
from tessera.kernels.base import KERNELS, Rows, Statistics
from tessera.kernels.rectified_polynomial import AdaptivePolynomial
from tessera.kernels.workspace import Workspace


@KERNELS.register("entmax")
@dataclass(frozen=True)
class Entmax(AdaptivePolynomial):
    """`AdaptivePolynomial` of alpha = 1 + 1/r, from which each head of a memory learns an alpha of its own.

    `alpha` is the start, and the learned ones stay between `lowest` and `highest` (`layers.learned_alpha`). Without a
    memory it is the kernel of its `alpha`.
    """

    name: ClassVar[str] = "entmax"
    alpha: float = 1.5
    lowest: float = 1.05
    highest: float = 2.0

    def __post_init__(self) -> None:
        numbers = (self.lowest, self.alpha, self.highest)
        rise = all(isinstance(x, int | float) for x in numbers) and 1 < numbers[0] < numbers[1] < numbers[2] <= 2
        expect(rise, "kernel 'entmax'", "lowest, alpha, highest", "rise from above 1 to at most 2", list(numbers))

    @property
    def order(self) -> float:
        """`1 / (alpha - 1)`."""
        return 1 / (self.alpha - 1)


@dataclass(frozen=True, eq=False)
class EntmaxOfRows(AdaptivePolynomial):
    """`AdaptivePolynomial` with an alpha in (1, 2] for each row, (..., 1), which has a gradient.

    Derivatives at fixed scores, with share_i = u_i^(r-1) / M (Correia et al. 2019, arXiv:1909.00015, proposition 2):
    `dw_i / d alpha = (w_i - share_i) / (alpha - 1)^2 - (w_i log w_i - share_i sum_j w_j log w_j) / (alpha - 1)`.
    """

    name: ClassVar[str] = "entmax of rows"
    alpha: Float[Tensor, "*#rows 1"]

    @property
    def order(self) -> Float[Tensor, "*#rows 1"]:
        """`1 / (alpha - 1)`."""
        return 1 / (self.alpha - 1)

    @property
    def row_parameter(self) -> Float[Tensor, "*#rows 1"]:
        """alpha."""
        return self.alpha

    def with_row_parameter(self, parameter: Float[Tensor, "*#rows 1"]) -> "EntmaxOfRows":
        """The same with other alphas."""
        return EntmaxOfRows(parameter)

    def backward(self, scaled: Rows, statistics: Statistics, grad: Rows, workspace: Workspace) -> tuple[Tensor, ...]:
        """Weights, the scores' gradient as in `AdaptivePolynomial`, and alpha's."""
        weights, slopes = self.weights_and_slopes(scaled, statistics, workspace)
        spare = workspace.empty_like(scaled)
        above_weights = torch.mul(weights, grad, out=spare).sum(-1, keepdim=True)
        entropy = torch.xlogy(weights, weights, out=spare).sum(-1, keepdim=True)
        above_logs = spare.mul_(grad).sum(-1, keepdim=True)
        mean = self.mean_of(grad.mul_(slopes), statistics)
        scale = self.alpha - 1
        d_alpha = (above_weights - mean) / scale.square() - (above_logs - mean * entropy) / scale
        return weights, grad.addcmul_(slopes, mean, value=-1), d_alpha

    def score_floor(self, largest: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """See `AdaptivePolynomial`."""
        return (largest.unsqueeze(-1) - self.order).squeeze(-1)
