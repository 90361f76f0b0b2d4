"""alpha-entmax of any alpha above 1, one for each row and learned if need be."""

import torch
from torch import Tensor

from tessera.base.first_derivative import only_first_derivative
from tessera.base.shapes import Float
from tessera.kernels.rows import row_maximum

STEPS = {torch.float32: 32, torch.float64: 64}  # of bisection: each gives a binary digit of the threshold


def entmax_of_rows(scores: Float[Tensor, "*rows N"], alpha: Float[Tensor, "*#rows 1"]) -> Float[Tensor, "*rows N"]:
    """`p_i = [(alpha - 1) s_i - tau]_+^(1 / (alpha - 1))`, differentiable in scores and alpha > 1.

    Entries of -inf are absent, rows of nothing else 0. The threshold is found by bisection. Derivatives as in Correia
    et al. 2019 (arXiv:1909.00015), propositions 1 and 2.
    """
    precise = torch.promote_types(scores.dtype, torch.float32)
    return _AnyAlpha.apply(scores.to(precise), alpha.to(scores.device, precise)).to(scores.dtype)


class _AnyAlpha(torch.autograd.Function):
    """Scores (..., N), and alpha (..., 1) that broadcasts against them."""

    @staticmethod
    def forward(ctx, scores: Tensor, alpha: Tensor) -> Tensor:
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
        p = p / torch.where(p.sum(-1, keepdim=True) == 0, 1.0, p.sum(-1, keepdim=True))
        ctx.save_for_backward(scores, alpha, p)
        return p

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
