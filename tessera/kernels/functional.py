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

LEAST_OF_NEWTON = 1.01  # alpha: closer to 1, a power of 1 / (alpha - 1) loses more than two of float32's digits


@explains_mistakes
def entmax(
    scores: Float[Tensor, "*shape"], alpha: float | int | Float[Tensor, "..."] = 1.5, dim: int = -1
) -> Float[Tensor, "*shape"]:
    """alpha-entmax, `[(alpha - 1) s_i - tau]_+^(1 / (alpha - 1))` with tau such that it sums to 1; alpha of at least 1.

    alpha = 1 is softmax, alpha = 2 sparsemax. A number from 1.01 to 2 costs one to three passes of Newton's method. A
    tensor, which broadcasts against `scores` with size 1 along `dim` and may be learned, must be above 1; it and other
    numbers cost a pass for each binary digit.
    """
    if not isinstance(alpha, Tensor):
        is_number = isinstance(alpha, int | float) and not isinstance(alpha, bool) and 1 <= alpha < float("inf")
        expect(is_number, "entmax", "alpha", "be a finite number of at least 1", alpha)
        if alpha == 1 or LEAST_OF_NEWTON <= alpha <= 2:
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
    if not scores.is_floating_point():
        raise TypeError("booleans too")  # `explains_mistakes` names the function
    visible = (scores != -torch.inf).movedim(dim, -1)
    return kernel.weights(scores.movedim(dim, -1), visible).movedim(-1, dim)


STEPS = {torch.float32: 32, torch.float64: 64}  # of bisection: each gives a binary digit of a weight


def entmax_of_rows(scores: Rows, alpha: Float[Tensor, "*#rows 1"]) -> Rows:
    """`p_i = [(alpha - 1) s_i - tau]_+^(1 / (alpha - 1))`, differentiable in scores and alpha > 1.

    Entries of -inf are absent, rows of nothing else 0. Derivatives as in Correia et al. 2019 (arXiv:1909.00015),
    propositions 1 and 2.
    """
    refuse_forward_derivative("entmax")
    precise = torch.promote_types(scores.dtype, torch.float32)
    return _AnyAlpha.apply(scores.to(precise), alpha.to(scores.device, precise)).to(scores.dtype)


class _AnyAlpha(torch.autograd.Function):
    """Scores (..., N), and alpha (..., 1) that broadcasts against them."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, alpha: Tensor) -> Tensor:
        """p, which sums to 1.

        Of a large alpha the threshold tau lies closer to the scores than numbers tell. So what is sought is the
        smallest score s with weight, and how far u it lies above tau: `p_i = [u +
        (alpha - 1) (s_i - s)]^(1 / (alpha - 1))`, in digits of u, or of the weight of s where alpha is above 2.
        """
        excess = _excess(alpha)
        power = 1 / excess
        ordered = scores.sort(-1, descending=True).values
        rank = torch.zeros_like(ordered[..., :1], dtype=torch.long)
        for bit in reversed(range(scores.shape[-1].bit_length())):
            tried = rank + (1 << bit)
            smallest = ordered.gather(-1, tried.clamp(max=scores.shape[-1] - 1))
            above = (excess * (scores - smallest).clamp(min=0)).pow(power).sum(-1, keepdim=True)
            rank = torch.where((tried < scores.shape[-1]) & (above < 1), tried, rank)
        smallest = ordered.gather(-1, rank)
        distance = excess * torch.where(scores == smallest, 0.0, scores - smallest)
        logs = distance.clamp(min=0).log()  # of what underflows by itself
        digits = excess.clamp(min=1)
        low = torch.zeros_like(smallest)
        width = torch.ones_like(smallest)
        for _ in range(STEPS[scores.dtype]):
            width = width / 2
            p = _responses(logs, distance, digits * (low + width).log(), power)
            low = torch.where(p.sum(-1, keepdim=True) < 1, low + width, low)
        p = torch.where(scores == -torch.inf, 0.0, _responses(logs, distance, digits * low.log(), power))
        return p / torch.where(p.sum(-1, keepdim=True) == 0, 1.0, p.sum(-1, keepdim=True))

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    @only_first_derivative("entmax")
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Those of the scores, and of alpha."""
        _, alpha, p = ctx.saved_tensors
        excess, is_inside = _excess(alpha), p != 0
        log_p = torch.where(is_inside, p, 1.0).log()
        logs = torch.where(is_inside, log_p - excess * log_p, -torch.inf)
        share = logs.softmax(-1).where(is_inside, 0.0)
        above = grad - (share * grad).sum(-1, keepdim=True)
        d_scores = torch.where(is_inside, logs.exp() * above, 0.0)
        # All sum to 0; the one with the largest share is a difference of what is nearly equal, times a large number.
        first = share.argmax(-1, keepdim=True)
        d_scores = d_scores.scatter(-1, first, 0.0)
        d_scores = d_scores.scatter(-1, first, -d_scores.sum(-1, keepdim=True))
        # Times p_i (1 - l_i) / (alpha - 1)^2, l = (alpha - 1) log p. Times p_i exp(-l_i) they sum to 0, and near
        # alpha = 1 only the difference has digits.
        log_u = excess * log_p
        curve = p * torch.where(alpha < 1.5, -log_u - torch.expm1(-log_u), 1 - log_u)
        return d_scores, (above * curve / excess.square()).sum(-1, keepdim=True).sum_to_size(alpha.shape)


def _excess(alpha: Tensor) -> Tensor:
    """`alpha - 1`, which may have been rounded to 0 with alpha."""
    return (alpha - 1).clamp(min=torch.finfo(alpha.dtype).eps)


def _responses(logs: Tensor, distance: Tensor, log_above: Tensor, power: Tensor) -> Tensor:
    p = (power * torch.logaddexp(logs, log_above)).exp()
    return torch.where(distance < 0, 0.0, p)
