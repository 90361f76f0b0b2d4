"""Normalisation to unit length, with a zero vector left at zero."""

import torch
from torch import Tensor

from tessera.base.arguments import explains_mistakes
from tessera.base.devices import is_transformed
from tessera.base.first_derivative import fresh_result, only_first_derivative
from tessera.base.shapes import Float


@explains_mistakes
def unit_norm(x: Float[Tensor, "*shape"], eps: float = 0.0) -> Float[Tensor, "*shape"]:
    """`x / (|x| + eps)` over the last dimension; a zero vector gives zero, with zero gradient.

    The papers' Norm has eps = 0. Published checkpoints carry other values (nanoMosaics 1e-10, three moons 1e-3).
    The result has the dtype of `x`.

    >>> unit_norm(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    if torch.is_grad_enabled() and x.requires_grad and not is_transformed():
        return _UnitNorm.apply(x, eps)
    length = _length(x)
    # Also where the squares of a vector are too small for its length.
    return (x / (length + eps if eps else length).masked_fill(length == 0, torch.inf)).to(x.dtype)


def _length(x: Tensor) -> Tensor:
    """`|x|` with a last dimension of one.

    Half precision is measured in float32. Float32 is normalised in float64 and rounded once: an inverse bandwidth of
    e^10 (the published clamp) turns one unit in the last place of a length into 1e-3 in a score.
    """
    precise = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else torch.float64
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=precise)


class _UnitNorm(torch.autograd.Function):
    """`x / (|x| + eps)` over the last dimension; 0 stays 0."""

    @staticmethod
    def forward(ctx, x, eps):
        """Saved for backward: y, `1 / (|x| + eps)`, and `(|x| + eps) / |x|` unless eps is 0."""
        length = _length(x)
        inverse = torch.where(length == 0, 0.0, 1.0 / (length + eps))
        # Bfloat16 has the range of float32; in float16 one over a short length is infinite.
        kept = inverse if x.dtype == torch.float16 else inverse.to(x.dtype)
        y = x * kept if x.dtype == torch.bfloat16 else (x * inverse).to(x.dtype)
        # d|x|/dx enters with weight (|x| + eps) / |x|: 1 when eps is zero.
        share = torch.where(length > 0, length * inverse, 1.0).reciprocal().to(x.dtype) if eps else None
        ctx.save_for_backward(y, kept, share)
        return fresh_result(y)

    @staticmethod
    @only_first_derivative("unit_norm")
    def backward(ctx, grad):
        """`(g - y (g . y) (|x| + eps) / |x|) / (|x| + eps)`, from g, the gradient of y."""
        y, inverse, share = ctx.saved_tensors
        along = torch.linalg.vecdot(grad, y).unsqueeze(-1)
        if share is not None:
            along = along * share
        return torch.addcmul(grad, y, along, value=-1).mul_(inverse), None
