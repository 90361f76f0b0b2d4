"""Random inputs for the Triton kernels of kernel regression, and the comparison with the float64 reference."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tessera.kernels import Kernel, NormalizedReLU
from tessera.ops.kernel_regression import kernel_regression


def draw(
    kernel: Kernel,
    queries: int,
    pairs: int,
    heads: int = 1,
    widths: tuple[int, int] = (10, 6),
    batch: int = 2,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """Unit queries and keys, values and an output gradient (rounded to `dtype`), slopes and intercepts; all float64."""
    generator = torch.Generator().manual_seed(queries + pairs)

    def normal(*shape):
        return torch.randn(batch, heads, *shape, generator=generator, dtype=torch.float64)

    def rounded(x):
        return x.to(dtype).double()

    tensors = {
        "query": rounded(normalize(normal(queries, widths[0]), dim=-1)),
        "key": rounded(normalize(normal(pairs, widths[0]), dim=-1)),
        "value": rounded(normal(pairs, widths[1])),
        "slope": 1 + 6 * torch.rand(batch, heads, queries, generator=generator, dtype=torch.float64),
        "above": rounded(normal(queries, widths[1])),
    }
    if isinstance(kernel, NormalizedReLU):
        # Wide enough a support that sums of weights stay well away from 0, where rounding would be amplified.
        tensors["intercept"] = torch.full((heads, 1), 3.0, dtype=torch.float64)
    return tensors


def regress(
    kernel: Kernel, tensors: dict[str, Tensor], backend: str, dtype: torch.dtype, device: torch.device | str, **masks
) -> dict[str, Tensor]:
    """The output and the gradients by name; slopes and intercepts are float32 beside half-precision tensors."""
    precise = torch.promote_types(dtype, torch.float32)
    inputs = {
        name: x.to(device, precise if name in ("slope", "intercept") else dtype).requires_grad_()
        for name, x in tensors.items()
        if name != "above"
    }
    masks = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in masks.items()}
    output = kernel_regression(**inputs, kernel=kernel, backend=backend, **masks)
    grads = torch.autograd.grad(output, list(inputs.values()), tensors["above"].to(device, dtype), allow_unused=True)
    return {"output": output.detach(), **dict(zip(inputs, grads))}


def assert_equal(
    actual: dict[str, Tensor], kernel: Kernel, tensors: dict[str, Tensor], masks: dict, relative: float = 3e-5
):
    """Compare with the reference in float64, relative to the largest entry (at least 1: gradients may cancel to 0).

    3e-5 for float32: rounding of sums over tens of pairs, times slopes up to 7.
    """
    expected = regress(kernel, tensors, "reference", torch.float64, actual["output"].device, **masks)
    for name, right in expected.items():
        left = actual[name].double()
        bound = relative * max(right.abs().max().item(), 1.0)
        # `not <=`: NaN fails.
        assert (left - right).abs().max().item() <= bound, name
