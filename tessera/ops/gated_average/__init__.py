"""Gated, time-variant average over time, restarted at document borders, with its state passed in and returned."""

import torch
from torch import Tensor

from tessera.base.arguments import explains_mistakes
from tessera.base.shapes import Documents, Float
from tessera.ops.backends import Backends
from tessera.ops.gated_average import chunked, reference, triton
from tessera.ops.gated_average.call import GatedAverageCall, GatedAverageState
from tessera.ops.linear_recurrence.call import document_starts, expect_sequence

# In order of preference: the first that supports the call runs it.
BACKENDS = Backends("gated_average", triton=triton, chunked=chunked, reference=reference)


@explains_mistakes
def gated_average(
    x: Float[Tensor, "B H T K"],
    log_gate: Float[Tensor, "B H T"],
    log_decay: Float[Tensor, "B H T"],
    initial_state: GatedAverageState | None = None,
    documents: Documents = None,
    backend: str | None = None,
) -> tuple[Float[Tensor, "B H T K"], GatedAverageState]:
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
        backend: one of `BACKENDS`; None takes the first that supports the call.
    Returns:
        y (B, H, T, K) in the dtype of x, and the state after step T, in float32 at least. O(T) memory, forward and
        backward.
    Raises:
        TesseraError: shapes that do not fit, or a `backend` that cannot run this call.
    """
    expect_sequence("gated_average", x)
    starts = document_starts("gated_average", x, documents)
    if starts is not None and log_decay.shape == x.shape[:3]:
        log_decay = log_decay.masked_fill(starts[:, None], -torch.inf)
    state = GatedAverageState.empty(x) if initial_state is None else initial_state
    # Rounded to half precision at each token, an average of many would stand still.
    average = state.average.to(torch.promote_types(state.average.dtype, torch.float32))
    call = GatedAverageCall(x, log_gate, log_decay, GatedAverageState(average, state.log_weight))
    if backend is None and x.shape[2] == 1:  # decoding: no implementation does it otherwise
        return chunked.run(call)
    return BACKENDS.choose(call, backend).run(call)


__all__ = ["BACKENDS", "GatedAverageCall", "GatedAverageState", "gated_average"]
