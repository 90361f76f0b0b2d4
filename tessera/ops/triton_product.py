"""Products of tiles, for every Triton kernel of the library."""

import torch
import triton
import triton.language as tl


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
