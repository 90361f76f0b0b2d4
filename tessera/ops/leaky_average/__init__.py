"""Leaky average over time, restarted at document borders, with its state passed in and returned."""

from types import ModuleType

import torch
from torch import Tensor

from tessera.errors import TesseraError, expect
from tessera.ops.leaky_average import chunked, reference, triton
from tessera.registry import Registry

# In order of preference: the first that does not refuse runs.
BACKENDS: Registry[ModuleType] = Registry("leaky average backend")
BACKENDS.add("triton", triton)
BACKENDS.add("chunked", chunked)
BACKENDS.add("reference", reference)


def leaky_average(
    x: Tensor,
    decay: Tensor,
    initial_state: Tensor | None = None,
    documents: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """`y_T = x_T + lambda y_{T-1}` per head (Memory Mosaics, equation 6, without the constant that Norm removes).

    Args:
        x: (B, H, T, K). decay: lambda (H,), in (0, 1].
        initial_state: y_0 (B, H, K); None is zero.
        documents: integers (B, T); the average restarts wherever the document changes. The first step continues from
            `initial_state`: pass None there when a new document begins.
        backend: one of `BACKENDS`; None takes the first that does not refuse.
    Returns:
        y (B, H, T, K) and the state y_T (B, H, K) to continue from. O(T) memory, forward and backward.
    """
    expect(x.dim() == 4 and x.shape[2] > 0, "leaky_average", "x", "be (B, H, T, K) with T >= 1", tuple(x.shape))
    expect(decay.shape == x.shape[1:2], "leaky_average", "decay", f"have shape ({x.shape[1]},)", tuple(decay.shape))
    starts = None
    if documents is not None:
        starts = torch.zeros_like(documents, dtype=torch.bool)
        starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
    y = _choose(x, backend).run(x, decay, initial_state, starts)
    return y, y[:, :, -1]


def _choose(x: Tensor, backend: str | None) -> ModuleType:
    if backend is None:
        return next(module for _, module in BACKENDS.items() if module.refuse(x) is None)
    reason = BACKENDS[backend].refuse(x)
    if reason is not None:
        raise TesseraError(f"leaky_average: backend {backend!r} cannot run this call: {reason}")
    return BACKENDS[backend]


__all__ = ["BACKENDS", "leaky_average"]
