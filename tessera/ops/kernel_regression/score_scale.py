"""Slope and intercept of the scores, from whichever way a caller says how sharp a kernel is."""

import math

import torch
from torch import Tensor

from tessera.base.devices import is_readable
from tessera.base.errors import TesseraError, expect
from tessera.kernels.base import Kernel
from tessera.ops.kernel_regression.call import WHERE

Scale = Tensor | float | None


def scale_of_scores(
    query: Tensor, kernel: Kernel, slope: Scale, intercept: Scale, inverse_bandwidth: Scale, where: str = WHERE
) -> tuple[Tensor, Tensor | None]:
    """Slope and intercept as tensors: those given, or `kernel.affine(inverse_bandwidth)`.

    Raises `TesseraError` unless exactly one way is taken, for an inverse bandwidth that is not positive, and for a
    slope alone where the kernel's own intercept is not 0: its scores would be of no bandwidth at all.
    """
    if inverse_bandwidth is not None:
        is_alone = slope is None and intercept is None
        expect(is_alone, where, "slope and intercept", "be left out beside inverse_bandwidth", "both")
        beta = _tensor(where, query, "inverse_bandwidth", inverse_bandwidth)
        is_positive = not is_readable(beta) or bool((beta > 0).all()) or bool(beta.isnan().any())
        expect(is_positive, where, "inverse_bandwidth", "be positive", inverse_bandwidth)
        return kernel.affine(beta)
    if slope is None:
        expect(False, where, "inverse_bandwidth (or slope)", "be given", None)
    slope = _tensor(where, query, "slope", slope)
    if intercept is not None:
        return slope, _tensor(where, query, "intercept", intercept)
    if kernel.has_intercept:
        advice = "Give inverse_bandwidth alone, or say intercept=0.0."
        expect(False, where, "intercept", f"be given beside a slope for the kernel {kernel.name!r}", None, advice)
    return slope, None


def _tensor(where: str, query: Tensor, name: str, scale: Scale) -> Tensor:
    """`scale` as a tensor; a number in the precision in which scores are computed."""
    if isinstance(scale, Tensor):
        return scale
    if not isinstance(scale, int | float) or isinstance(scale, bool):
        raise TesseraError(f"{where}: {name} must be a number or a tensor; got {type(scale).__name__}.")
    expect(abs(scale) < math.inf, where, name, "be finite", scale)
    precise = torch.float64 if query.dtype == torch.float64 else torch.float32
    return torch.tensor(scale, dtype=precise, device=query.device)
