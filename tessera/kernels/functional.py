"""The kernels as plain functions on scores, by the names that attention mechanisms go by.

Every function maps scores of any dtype and shape to weights along `dim` that sum to 1, with exact gradients. Entries
of -inf are absent; a row of nothing else gives zeros, one with a NaN gives NaN. Half-precision scores are computed in
float32.
"""

import torch
from torch import Tensor

from tessera.base.arguments import explains_mistakes
from tessera.base.devices import is_readable
from tessera.base.errors import expect
from tessera.base.first_derivative import only_first_derivative, refuse_forward_derivative
from tessera.base.shapes import Float
from tessera.kernels.base import Kernel, Rows
from tessera.kernels.gaussian import Gaussian
from tessera.kernels.nearest_neighbours import NearestNeighbours
from tessera.kernels.normalized_relu import NormalizedReLU
from tessera.kernels.rectified_polynomial import Epanechnikov, RectifiedPolynomial
from tessera.kernels.relumax import ReLUmax
from tessera.kernels.rows import row_maximum


@explains_mistakes
def entmax(
    scores: Float[Tensor, "*shape"], alpha: float | int | Float[Tensor, "..."] = 1.5, dim: int = -1
) -> Float[Tensor, "*shape"]:
    """alpha-entmax, `[(alpha - 1) s_i - tau]_+^(1 / (alpha - 1))` with tau such that it sums to 1; alpha of at least 1.

    alpha = 1 is softmax, alpha = 2 sparsemax. A number up to 2 costs one to three passes of Newton's method. A tensor,
    which broadcasts against `scores` with size 1 along `dim` and may be learned, must be above 1; it and numbers above
    2 cost a pass for each binary digit.
    """
    if not isinstance(alpha, Tensor):
        is_number = isinstance(alpha, int | float) and not isinstance(alpha, bool) and 1 <= alpha < float("inf")
        expect(is_number, "entmax", "alpha", "be a finite number of at least 1", alpha)
        if alpha <= 2:
            return _along(scores, dim, Gaussian() if alpha == 1 else RectifiedPolynomial(order=1 / (alpha - 1)))
        alpha = torch.tensor(alpha, dtype=torch.float64, device=scores.device)
    expect(scores.is_floating_point(), "entmax", "scores", "be floating-point numbers", scores.dtype)
    _expect_dim(scores, dim)
    if scores.shape[dim] == 0:
        return scores
    one_per_row = list(scores.shape)
    one_per_row[dim] = 1
    try:
        per_row = alpha.expand(one_per_row)
    except RuntimeError:
        expect(False, "entmax", "alpha", f"broadcast to {tuple(one_per_row)}", tuple(alpha.shape))
    if is_readable(alpha):
        expect(not bool((alpha <= 1).any()), "entmax", "alpha", "be above 1 where it is a tensor", alpha.min().item())
    return entmax_of_rows(scores.movedim(dim, -1), per_row.movedim(dim, -1)).movedim(-1, dim)


@explains_mistakes
def sparsemax(scores: Float[Tensor, "*shape"], dim: int = -1) -> Float[Tensor, "*shape"]:
    """The Euclidean projection of the scores onto the simplex, `[s_i - tau]_+`."""
    return _along(scores, dim, Epanechnikov())


@explains_mistakes
def relumax(scores: Float[Tensor, "*shape"], margin: float = 1.0, dim: int = -1) -> Float[Tensor, "*shape"]:
    """`[margin + s_i - max_j s_j]_+`, normalised."""
    return _along(scores, dim, ReLUmax(margin))


@explains_mistakes
def normalized_relu(scores: Float[Tensor, "*shape"], dim: int = -1) -> Float[Tensor, "*shape"]:
    """`[s_i]_+`, normalised; uniform over the entries that are not -inf if none is positive."""
    return _along(scores, dim, NormalizedReLU())


@explains_mistakes
def knn_softmax(scores: Float[Tensor, "*shape"], k: int, dim: int = -1) -> Float[Tensor, "*shape"]:
    """Softmax over the k largest scores, 0 elsewhere; of ties at the k-th place the largest index is kept."""
    return _along(scores, dim, NearestNeighbours("gaussian", k))


@explains_mistakes
def knn_uniform(scores: Float[Tensor, "*shape"], k: int, dim: int = -1) -> Float[Tensor, "*shape"]:
    """`1 / k` on the k largest scores, 0 elsewhere (see `knn_softmax`); the gradient is zero."""
    return _along(scores, dim, NearestNeighbours("uniform", k))


def _expect_dim(scores: Tensor, dim: int) -> None:
    if not -scores.dim() <= dim < scores.dim():
        expect(False, "a function of scores", "dim", f"lie in {-scores.dim()}..{scores.dim() - 1}", dim)


def _along(scores: Float[Tensor, "*shape"], dim: int, kernel: Kernel) -> Tensor:
    _expect_dim(scores, dim)
    visible = (scores != -torch.inf).movedim(dim, -1)
    return kernel.weights(scores.movedim(dim, -1), visible).movedim(-1, dim)


STEPS = {torch.float32: 32, torch.float64: 64}  # of bisection: each gives a binary digit of the threshold


def entmax_of_rows(scores: Rows, alpha: Float[Tensor, "*#rows 1"]) -> Rows:
    """`p_i = [(alpha - 1) s_i - tau]_+^(1 / (alpha - 1))`, differentiable in scores and alpha > 1.

    Entries of -inf are absent, rows of nothing else 0. The threshold is found by bisection. Derivatives as in Correia
    et al. 2019 (arXiv:1909.00015), propositions 1 and 2.
    """
    refuse_forward_derivative("entmax")
    precise = torch.promote_types(scores.dtype, torch.float32)
    return _AnyAlpha.apply(scores.to(precise), alpha.to(scores.device, precise)).to(scores.dtype)


class _AnyAlpha(torch.autograd.Function):
    """Scores (..., N), and alpha (..., 1) that broadcasts against them."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, alpha: Tensor) -> Tensor:
        """p, which sums to 1."""
        power = 1 / (alpha - 1)
        x = (alpha - 1) * (scores - row_maximum(scores))
        low = torch.full_like(x[..., :1], -1.0)
        width = low.new_ones(low.shape)
        for _ in range(STEPS[x.dtype]):
            width = width / 2
            enough = _responses(x, low + width, power).sum(-1, keepdim=True) >= 1
            low = torch.where(enough, low + width, low)
        p = _responses(x, low, power)
        return p / torch.where(p.sum(-1, keepdim=True) == 0, 1.0, p.sum(-1, keepdim=True))

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    @only_first_derivative("entmax")
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Those of the scores, and of alpha."""
        _, alpha, p = ctx.saved_tensors
        is_inside = p != 0
        slopes = torch.where(is_inside, p.pow(2 - alpha), 0.0)
        share = slopes / slopes.sum(-1, keepdim=True).clamp_min(torch.finfo(p.dtype).tiny)
        d_scores = slopes * grad - slopes * (share * grad).sum(-1, keepdim=True)
        entropy = torch.where(is_inside, p * p.log(), 0.0)
        d_p = (p - share) / (alpha - 1).square() - (entropy - share * entropy.sum(-1, keepdim=True)) / (alpha - 1)
        return d_scores, (grad * d_p).sum(-1, keepdim=True).sum_to_size(alpha.shape)


def _responses(x: Tensor, tau: Tensor, power: Tensor) -> Tensor:
    return (x - tau).clamp(min=0).pow(power)
