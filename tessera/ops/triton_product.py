"""Tensors as the library's Triton kernels address them, and products of tiles."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Matrix(NamedTuple):
    """A (B, H, T, width) or (B, H, T) tensor for a kernel: its address and strides. A width must have stride 1."""

    base: Tensor
    batch: int
    head: int
    row: int


def matrix(x: Tensor) -> Matrix:
    """`x` (B, H, T, ...) as the kernels address it."""
    return Matrix(x, x.stride(0), x.stride(1), x.stride(2))


def rowwise(x: Tensor) -> Tensor:
    """`x`, copied only if its rows are not stored densely."""
    return x if x.stride(-1) == 1 else x.contiguous()


@triton.jit
def product(a, b, total, PRECISION: tl.constexpr):
    """`total + a @ b` in float32; PRECISION is `dot_precision()`."""
    if PRECISION == "interpreter":
        # Triton's interpreter multiplies the bit patterns of bfloat16 (3.6 to 3.9).
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total)
    else:
        return tl.dot(a, b, total, input_precision=PRECISION)


INTERPRETED = not isinstance(product, triton.JITFunction)


def dot_precision() -> str:
    """Precision of products of float32 tiles: PyTorch's setting; three tf32 products each for its `highest`."""
    if INTERPRETED:
        return "interpreter"
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"
