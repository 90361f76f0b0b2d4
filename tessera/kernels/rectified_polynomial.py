"""Rectified polynomial kernels with adaptive bandwidth: alpha-entmax, with an alpha that is given or learned."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch._higher_order_ops import while_loop

from tessera.base.devices import has_values, is_readable
from tessera.base.errors import expect
from tessera.base.shapes import Float
from tessera.kernels.base import KERNELS, AnyShape, PerRow, Rows, Statistics, Visible
from tessera.kernels.rows import RowKernel, Workspace, row_maximum

# The threshold's search: columns are split into groups of this many, whose maxima give the start of the full iteration.
GROUP = 16
GROUPED_FROM = 1 << 15  # entries: of fewer, a pass takes no longer than the call
MAX_STEPS = 100
LARGEST_ALPHA = 2 * (1 + 2**-7)  # 2, by the arithmetic of bfloat16
LARGEST_ORDER = 1e4  # the sum of its weights is wrong by 1e-3 in float32, that of order 1e9 by all of it


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

    def score_floor(self, largest: AnyShape) -> AnyShape:
        """`largest - r`: tau lies at most 1 below the largest score over r."""
        return largest - self.order

    def subset_floor(self, scores: Rows, visible: Visible = None) -> PerRow:
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
    """`AdaptivePolynomial` of any real order r from 1 to 10,000, alpha = 1 + 1/r."""

    name: ClassVar[str] = "rectified_polynomial"
    order: float = 2.0

    def __post_init__(self) -> None:
        right = isinstance(self.order, int | float) and 1 <= self.order < float("inf")
        expect(right, "kernel 'rectified_polynomial'", "order", "be a finite number of at least 1", self.order)
        needed, advice = f"be at most {LARGEST_ORDER:,.0f}", "Of larger ones the limit is the kernel 'gaussian'."
        expect(self.order <= LARGEST_ORDER, "kernel 'rectified_polynomial'", "order", needed, self.order, advice)


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


@KERNELS.register("entmax")
@dataclass(frozen=True)
class Entmax(AdaptivePolynomial):
    """`AdaptivePolynomial` of alpha = 1 + 1/r, from which each head of a memory learns an alpha of its own.

    `alpha` is the start, and the learned ones stay between `lowest` and `highest` (`LearnedAlpha`). Without a
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
        least = 1 + 1 / LARGEST_ORDER
        expect(self.lowest >= least, "kernel 'entmax'", "lowest", f"be at least {least}", self.lowest)

    @property
    def order(self) -> float:
        """`1 / (alpha - 1)`."""
        return 1 / (self.alpha - 1)


@dataclass(frozen=True, eq=False)
class EntmaxOfRows(AdaptivePolynomial):
    """`AdaptivePolynomial` with an alpha in (1, 2] for each row, (..., 1), which has a gradient.

    At fixed scores its gradient is that of Correia et al. 2019 (arXiv:1909.00015, proposition 2), written with those of
    the scores, which sum to 0: `dL/dalpha = sum_i dL/dscore_i (u_i - 1 - u_i log u_i) / (alpha - 1)^2`. Near alpha = 1,
    where all u_i are nearly 1, it keeps its digits.
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

    def weights(self, scores: Rows, visible: Visible = None) -> Rows:
        """See `AdaptivePolynomial`. Raises `TesseraError`: alphas outside of (1, 2], which `entmax` takes."""
        self._expect_alphas("EntmaxOfRows")
        return super().weights(scores, visible)

    def expect_rows(self, where: str, shape: tuple[int, ...]) -> None:
        """See `RowKernel.expect_rows`."""
        super().expect_rows(where, shape)
        self._expect_alphas(where)

    def _expect_alphas(self, where: str) -> None:
        if is_readable(self.alpha) and self.alpha.numel():
            least, largest = (float(end) for end in self.alpha.detach().aminmax())
            is_inside = not (least <= 1 or largest > LARGEST_ALPHA)  # NaN makes its rows NaN
            expect(is_inside, where, "alphas of rows", "lie in (1, 2]", [least, largest])

    def backward(self, scaled: Rows, statistics: Statistics, grad: Rows, workspace: Workspace) -> tuple[Tensor, ...]:
        """Weights, the scores' gradient as in `AdaptivePolynomial`, and alpha's."""
        largest, tau, _ = statistics
        responses = scaled.sub_(largest).sub_(tau).clamp_(min=0)
        slopes = raise_to(responses, self.order - 1, out=workspace.empty_like(scaled))
        curve = torch.xlogy(responses, responses, out=workspace.empty_like(scaled))
        curve = torch.sub(responses, 1, out=workspace.empty_like(scaled)).sub_(curve)
        mean = self.mean_of(grad.mul_(slopes), statistics)
        d_scores = grad.addcmul_(slopes, mean, value=-1)
        d_alpha = curve.mul_(d_scores).sum(-1, keepdim=True) / (self.alpha - 1).square()
        return responses.mul_(slopes), d_scores, d_alpha

    def score_floor(self, largest: AnyShape) -> AnyShape:
        """See `AdaptivePolynomial`."""
        return (largest.unsqueeze(-1) - self.order).squeeze(-1)


def threshold(
    shifted: Rows, order: int | float | Float[Tensor, "*#rows 1"], workspace: Workspace
) -> tuple[Float[Tensor, "*rows 1"], Rows, Float[Tensor, "*rows 1"]]:
    """Solve `sum_i [x_i - tau]_+^r = 1` for each row of x = `shifted` (..., N), whose largest entry must be 0.

    Newton's method on the r-norm, `|[x - tau]_+|_r = 1`: the norm is convex and decreasing in tau, so that the steps
    `(M_r - M_r^(1 - 1/r)) / M_(r-1)`, with the moments `M_j = sum_i [x_i - tau]_+^j`, rise monotonically to the
    root from any start below it. (On the sum itself, steps shrink like 1/r when r is large.) Tau lies in
    [-1, -n^(-1/r)]. A subset of the entries has its root to the left of the row's root: the maxima of groups of
    columns are solved first, at 1/16 of the cost, and leave one to three steps for the full row.

    Returns:
        tau (..., 1); the responses u = [x - tau]_+ (..., N); M_(r-1) (..., 1) (for r = 1 the size of the support).
        Rows of -inf have u = 0. Precision: that of the dtype.
    """
    tau = shifted.new_full((*shifted.shape[:-1], 1), -1.0)
    if torch.compiler.is_compiling():  # groups depend on the length, of which an exported program knows nothing
        return _newton_in_graph(shifted, tau, order)
    num_groups = shifted.shape[-1] // GROUP
    if num_groups >= 4 and shifted.numel() >= GROUPED_FROM:
        body = shifted[..., : num_groups * GROUP].unflatten(-1, (GROUP, num_groups))
        tops = torch.cat([body.amax(dim=-2), shifted[..., num_groups * GROUP :]], dim=-1)
        tau = _newton(tops, tau, order, workspace)[0]
    return _newton(shifted, tau, order, workspace)


def _newton(shifted: Tensor, tau: Tensor, order: float | Tensor, workspace: Workspace) -> tuple[Tensor, Tensor, Tensor]:
    """Newton steps from `tau`, a point at or to the left of the root, until none moves it by more than rounding."""
    responses, powers = workspace.empty_like(shifted), workspace.empty_like(shifted)
    for _ in range(MAX_STEPS):
        step, slope = _step(torch.sub(shifted, tau, out=responses), order, powers)
        if not (has_values(step) and bool(_moves(step))):
            break
        tau = tau + step
    return tau, responses, slope


def _newton_in_graph(shifted: Tensor, tau: Tensor, order: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`_newton` as one operation of a compiled or exported program, whose Python cannot look at numbers."""

    def advanced(steps: Tensor, tau: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One more step, tau behind it, and the next step's length."""
        tau = tau + step
        return steps + 1, tau, _step(shifted - tau, order, torch.empty_like(shifted))[0]

    first = _step(shifted - tau, order, torch.empty_like(shifted))[0]
    carried = (torch.zeros((), dtype=torch.long, device=tau.device), tau, first)
    tau = while_loop(lambda steps, _, step: _moves(step) & (steps < MAX_STEPS), advanced, carried)[1]
    responses = shifted - tau
    return tau, responses, _step(responses, order, torch.empty_like(shifted))[1]


def _step(differences: Tensor, order: float | Tensor, powers: Tensor) -> tuple[Tensor, Tensor]:
    """Newton's step and M_(r-1) at tau, from `x - tau`, which becomes the responses; `powers` is overwritten."""
    total, slope = _moments(differences.clamp_(min=0), order, powers)
    step = (total - total.pow(1 - 1 / order)).div_(slope.clamp_min(torch.finfo(slope.dtype).tiny))
    # A step to the left is rounding; rows of -inf have total 0 and, for r = 1, the step -1.
    return step.clamp_(min=0), slope


def _moves(step: Tensor) -> Tensor:
    return (step > 2 * torch.finfo(step.dtype).eps).any()


def _moments(responses: Tensor, order: float | Tensor, powers: Tensor) -> tuple[Tensor, Tensor]:
    """`sum_i u_i^r` and `sum_i u_i^(r-1)`, both (..., 1), in few passes over u; `powers` is overwritten."""
    if not isinstance(order, Tensor) and order == 2:
        return torch.linalg.vector_norm(responses, dim=-1, keepdim=True).square_(), responses.sum(-1, keepdim=True)
    powers = raise_to(responses, order - 1, out=powers)
    slope = powers.sum(-1, keepdim=True)
    total = responses if not isinstance(order, Tensor) and order == 1 else powers.mul_(responses)
    return total.sum(-1, keepdim=True), slope


def raise_to(responses: Rows, exponent: int | float | Float[Tensor, "*#rows 1"], out: Rows) -> Rows:
    """`u^exponent`, 0 where u = 0 (also for the exponent 0: entries at the threshold are outside).

    The result lies in `out`; in a compiled or exported program, whose operations make new tensors, somewhere.
    """
    target = None if torch.compiler.is_compiling() else out
    if isinstance(exponent, Tensor):
        return torch.pow(responses, exponent, out=target).mul_(torch.sign(responses))
    if exponent == 0:
        return torch.sign(responses, out=target)
    if exponent == 1:
        return responses.clone() if target is None else target.copy_(responses)
    if exponent == 2:
        return torch.mul(responses, responses, out=target)
    if exponent == 3:
        return torch.mul(responses, responses, out=target).mul_(responses)
    return torch.pow(responses, exponent, out=target)
