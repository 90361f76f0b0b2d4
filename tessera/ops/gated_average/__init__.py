"""Gated, time-variant average over time, restarted at document borders, with its state passed in and returned."""

import torch
from torch import Tensor

from tessera.errors import expect
from tessera.ops.backends import Backends
from tessera.ops.gated_average import chunked, reference, triton
from tessera.ops.gated_average.state import GatedAverageState

# In order of preference: the first that does not refuse runs.
BACKENDS = Backends("gated_average")
BACKENDS.add("triton", triton)
BACKENDS.add("chunked", chunked)
BACKENDS.add("reference", reference)


def gated_average(
    x: Tensor,
    log_gate: Tensor,
    log_decay: Tensor,
    initial_state: GatedAverageState | None = None,
    documents: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, GatedAverageState]:
    """The direction of `kbar_T = exp(log_gate_T) x_T + exp(log_decay_T) kbar_{T-1}` (Memory Mosaics v2, equation 8).

    Only the direction of kbar matters, and its length overflows, so the result is the weighted average
    `y_T = kbar_T / z_T` with the sum of the weights `z_T = exp(log_gate_T) + exp(log_decay_T) z_{T-1}`, which never
    leaves the range of x. log z is carried in float64. Gradients are those of y; through `unit_norm(y)` they are
    those of kbar / |kbar|. A weight below the smallest number of the dtype, relative to z, is zero.

    Args:
        x: (B, H, T, K). log_gate: (B, H, T), any finite value. log_decay: (B, H, T), at most 0.
        initial_state: what an earlier call returned; None: nothing has been averaged yet.
        documents: integers (B, T); the average restarts wherever the document changes. The first step continues from
            `initial_state`: empty it (`GatedAverageState.kept`) where a new document begins.
        backend: one of `BACKENDS`; None takes the first that does not refuse.
    Returns:
        y (B, H, T, K) in the dtype of x, and the state after step T. O(T) memory, forward and backward.
    """
    where = "gated_average"
    expect(x.dim() == 4 and x.shape[2] > 0, where, "x", "be (B, H, T, K) with T >= 1", tuple(x.shape))
    for name, scalar in (("log_gate", log_gate), ("log_decay", log_decay)):
        expect(scalar.shape == x.shape[:3], where, name, f"have shape {tuple(x.shape[:3])}", tuple(scalar.shape))
    state = GatedAverageState.empty(x) if initial_state is None else initial_state
    starts = None
    if documents is not None:
        starts = torch.zeros_like(documents, dtype=torch.bool)
        starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return BACKENDS.choose(x, backend).run(x, log_gate, log_decay, state, starts)


__all__ = ["BACKENDS", "GatedAverageState", "gated_average"]
