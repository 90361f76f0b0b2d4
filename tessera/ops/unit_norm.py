"""Normalisation to unit length, with a zero vector left at zero."""

import torch
from torch import Tensor


def unit_norm(x: Tensor, eps: float = 0.0) -> Tensor:
    """`x / (|x| + eps)` over the last dimension; a zero vector gives zero, with zero gradient.

    The papers' Norm has eps = 0. Published checkpoints carry other values (nanoMosaics 1e-10, three moons 1e-3).
    Lengths are accumulated in float32 for half-precision inputs; the result has the dtype of `x`.

    >>> unit_norm(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return _UnitNorm.apply(x, eps)


class _UnitNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, eps):
        precise = torch.float64 if x.dtype == torch.float64 else torch.float32
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=precise)
        inverse = torch.where(length > 0, 1.0 / (length + eps), 0.0)
        # d|x|/dx enters with weight |x| / (|x| + eps): 1 when eps is zero.
        share = torch.where(length > 0, length * inverse, 1.0).reciprocal() if eps else None
        y = x * inverse.to(x.dtype)
        ctx.save_for_backward(y, inverse.to(x.dtype), None if share is None else share.to(x.dtype))
        return y

    @staticmethod
    def backward(ctx, grad):
        y, inverse, share = ctx.saved_tensors
        along = torch.linalg.vecdot(grad, y).unsqueeze(-1)
        if share is not None:
            along = along * share
        return torch.addcmul(grad, y, along, value=-1).mul_(inverse), None
