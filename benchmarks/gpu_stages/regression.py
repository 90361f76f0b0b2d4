"""Kernel regression for the stages that check and time it: inputs, operation, deviation, code to compare with."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize, scaled_dot_product_attention

from benchmarks.gpu_stages.settings import Settings
from tessera.kernels import Kernel
from tessera.ops.kernel_regression import Window, kernel_regression

# exp(2): the inverse bandwidth with which the published models start.
BETA = 7.389
# Relative to the largest entry of the reference: rounding of the products' operands, and their sums.
TOLERANCE = {torch.float32: 2e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}


def inputs(settings: Settings, batch: int, heads: int, length: int, width: int, dtype: torch.dtype) -> list[Tensor]:
    """Unit queries and keys, values, all leaves, and the gradient of the output."""
    drawn = [torch.randn(batch, length, heads, width, device=settings.device).transpose(1, 2) for _ in range(4)]
    query, key, value, above = drawn
    leaves = [normalize(query, dim=-1), normalize(key, dim=-1), value]
    return [leaf.to(dtype).detach().requires_grad_() for leaf in leaves] + [above.to(dtype)]


def ours(kernel: Kernel, query: Tensor, key: Tensor, value: Tensor, backend: str | None = None, **masks) -> Tensor:
    """Kernel regression at inverse bandwidth BETA; the strict past unless `masks` says otherwise."""
    masks = masks or {"window": Window()}
    precise = torch.promote_types(query.dtype, torch.float32)
    beta = torch.full((query.shape[1], 1), BETA, dtype=precise, device=query.device)
    slope, intercept = kernel.affine(beta)
    return kernel_regression(
        query, key, value, kernel=kernel, slope=slope, intercept=intercept, backend=backend, **masks
    )


def deviation(kernel: Kernel, backend: str | None, tensors: list[Tensor], **masks) -> float:
    """Largest difference from the float64 reference, output and gradients, relative to each one's largest entry.

    At least 1: with one pair the gradients of queries and keys are differences of equal numbers of that size.
    """
    *leaves, above = tensors
    output = ours(kernel, *leaves, backend=backend, **masks)
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = ours(kernel, *wide, backend="reference", **masks)
    if not expected.requires_grad:
        return (output.double() - expected).abs().max().item()
    results = [output, *torch.autograd.grad(output, leaves, above)]
    expected_results = [expected, *torch.autograd.grad(expected, wide, above.double())]
    worst = 0.0
    for left, right in zip(results, expected_results):
        error = ((left.double() - right).abs().max() / right.abs().max().clamp_min(1.0)).item()
        worst = error if not error <= worst else worst  # NaN stays
    return worst


def checked(kernel: Kernel, backend: str | None, tensors: list[Tensor], **masks) -> float:
    """`deviation`, or an error if it is too large: nothing wrong is timed."""
    error, allowed = deviation(kernel, backend, tensors, **masks), TOLERANCE[tensors[0].dtype]
    if not error <= allowed:
        raise ArithmeticError(f"{kernel.name} by {backend or 'choice'} is off by {error:.1e} (allowed {allowed:.0e})")
    return error


def fused_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """PyTorch's causal attention, with which every kernel is compared."""
    return scaled_dot_product_attention(query, key, value, is_causal=True, scale=BETA)


def dense_entmax(alpha: float, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The `entmax` package over the dense matrix of scores; bisection is what the published code runs."""
    import entmax

    future = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).triu(1)
    scores = (BETA * query @ key.mT).masked_fill(future, -torch.inf)
    exact = {2.0: entmax.sparsemax, 1.5: entmax.entmax15}.get(alpha) or partial(entmax.entmax_bisect, alpha=alpha)
    return exact(scores, dim=-1) @ value


def adasplash_peers(alpha: float) -> dict[str, Callable[..., Tensor]]:
    """AdaSplash as it chooses itself, and its first version; empty where the package is not installed."""
    try:
        import adasplash
    except ImportError:
        return {}

    def scaled(function: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # It divides scores by the square root of the width.
        return function(query * (BETA * query.shape[-1] ** 0.5), key, value, alpha=alpha, is_causal=True)

    peers = {"adasplash": partial(scaled, adasplash.adasplash)}
    if hasattr(adasplash, "adasplash_v1") and alpha == 1.5:
        peers["adasplash_v1"] = partial(scaled, adasplash.adasplash_v1)
    return peers
