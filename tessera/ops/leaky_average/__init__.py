"""Leaky average over time, restarted at document borders, with its state passed in and returned."""

import torch
from torch import Tensor

from tessera.errors import expect
from tessera.ops.backends import Backends
from tessera.ops.leaky_average import chunked, reference, triton

# In order of preference: the first that does not refuse runs.
BACKENDS = Backends("leaky_average")
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
    y = BACKENDS.choose(x, backend).run(x, decay, initial_state, starts)
    return y, y[:, :, -1]


__all__ = ["BACKENDS", "leaky_average"]
