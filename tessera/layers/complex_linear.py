"""A linear layer over complex numbers, for vectors that hold them as pairs of real ones."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from tessera.base.arguments import explains_mistakes
from tessera.base.shapes import Float


class ComplexLinear(nn.Linear):
    """`y = W x` with a complex `weight` (out, in): reals (..., 2 in) -> (..., 2 out), both as (real, imaginary) pairs.

    The inner product of two such real vectors is `Re <x, y>`, the one that kernels of complex vectors need. It has half
    the parameters of a real layer of the same widths: 2 in out instead of 4 in out. `double()` and `float()` leave a
    complex weight alone; `dtype` (torch.float32 or float64, that of the real vectors) is chosen here.
    """

    def __init__(self, in_features: int, out_features: int, dtype: torch.dtype | None = None):
        real = torch.get_default_dtype() if dtype is None else dtype
        super().__init__(in_features, out_features, bias=False, dtype=real.to_complex())

    def reset_parameters(self) -> None:
        """Each part is the mean of two numbers uniform within `± 1 / sqrt(2 in)`.

        As published: a real layer of 2 in inputs, projected onto the complex ones.
        """
        bound = (2 * self.in_features) ** -0.5
        with torch.no_grad():
            parts = torch.view_as_real(self.weight)
            parts.uniform_(-bound, bound).add_(torch.empty_like(parts).uniform_(-bound, bound)).div_(2)

    @explains_mistakes
    def forward(self, x: Float[Tensor, "*rows inputs"]) -> Float[Tensor, "*rows outputs"]:
        """`W x` of complex numbers, whose real and imaginary parts alternate in the last dimension."""
        numbers = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(linear(numbers, self.weight)).flatten(-2)
