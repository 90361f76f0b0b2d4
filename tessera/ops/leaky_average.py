"""Leaky average over time, restarted at document borders, with its state passed in and returned."""

import torch
from torch import Tensor

from tessera.base.arguments import explains_mistakes
from tessera.base.shapes import Documents, Float
from tessera.ops.linear_recurrence import linear_recurrence
from tessera.ops.linear_recurrence.call import document_starts, expect_sequence, expect_shape


@explains_mistakes
def leaky_average(
    x: Float[Tensor, "B H T K"],
    decay: Float[Tensor, " H"],
    initial_state: Float[Tensor, "B H K"] | None = None,
    documents: Documents = None,
    backend: str | None = None,
) -> tuple[Float[Tensor, "B H T K"], Float[Tensor, "B H K"]]:
    """`y_T = x_T + lambda y_{T-1}` per head (Memory Mosaics, equation 6, without the constant that Norm removes).

    Args:
        x: (B, H, T, K). decay: lambda (H,), in (0, 1], best in float64: it is raised to high powers.
        initial_state: y_0 (B, H, K); None is zero.
        documents: integers (B, T); the average restarts wherever the document changes. The first step continues from
            `initial_state`: pass None there when a new document begins.
        backend: one of those of `linear_recurrence`; None takes the first that supports the call.
    Returns:
        y (B, H, T, K) and the state y_T (B, H, K) to continue from, float32 for narrower x: rounded at each token, an
        average with a slow decay drifts. O(T) memory, forward and backward.
    Raises:
        TesseraError: shapes that do not fit, or a `backend` that cannot run this call.
    """
    expect_sequence("leaky_average", x)
    expect_shape("leaky_average", "decay", decay, (x.shape[1],))
    precise = torch.promote_types(x.dtype, torch.float32)
    if initial_state is not None:
        expect_shape("leaky_average", "initial_state", initial_state, (x.shape[0], x.shape[1], x.shape[3]))
        initial_state = initial_state.to(precise)
    elif x.dtype != precise:
        initial_state = x.new_zeros(x.shape[0], x.shape[1], x.shape[3], dtype=precise)
    if backend is None and x.shape[2] == 1:
        return _one_step(x, decay, initial_state, documents)
    keep = decay[None, :, None].expand(1, -1, x.shape[2])
    starts = document_starts("leaky_average", x, documents)
    if starts is not None:
        keep = keep.masked_fill(starts[:, None], 0.0)
    return linear_recurrence(x, keep, initial=initial_state, backend=backend)


def _one_step(x: Tensor, decay: Tensor, initial_state: Tensor | None, documents: Tensor | None):
    """The equation itself, for decoding. The first step begins no document: it continues from `initial_state`."""
    if documents is not None:
        expect_shape("leaky_average", "documents", documents, (x.shape[0], 1))
    if initial_state is None:
        return x, x[:, :, 0]
    dtype = initial_state.dtype
    state = torch.addcmul(x[:, :, 0].to(dtype), decay.to(dtype)[:, None], initial_state)
    return state.unsqueeze(2).to(x.dtype), state
