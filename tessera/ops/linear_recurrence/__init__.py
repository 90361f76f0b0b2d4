"""A linear recurrence over time with one factor per head and step: what leaky and gated averages are made of."""

from torch import Tensor

from tessera.base.arguments import explains_mistakes
from tessera.base.shapes import Float
from tessera.ops.backends import Backends
from tessera.ops.linear_recurrence import chunked, reference, triton
from tessera.ops.linear_recurrence.call import RecurrenceCall

# In order of preference: the first that supports the call runs it.
BACKENDS = Backends("linear_recurrence", triton=triton, chunked=chunked, reference=reference)


@explains_mistakes
def linear_recurrence(
    x: Float[Tensor, "B H T K"],
    keep: Float[Tensor, "#B H T"],
    new: Float[Tensor, "B H T"] | None = None,
    initial: Float[Tensor, "B H K"] | None = None,
    backend: str | None = None,
) -> tuple[Float[Tensor, "B H T K"], Float[Tensor, "B H K"]]:
    """`y_t = new_t x_t + keep_t y_{t-1}` per head, from y_0 = `initial`.

    Args:
        x: (B, H, T, K).
        keep: (B or 1, H, T), in [0, 1]. Its logarithm is taken in float64 on CPUs: pass float64 where 1 - keep counts.
        new: (B, H, T); None is all 1. With it `keep` must be `1 - new`: the gradient of both is that of `new`.
        initial: (B, H, K), None is zero. Sums are carried in its dtype, in that of x without it.
        backend: one of `BACKENDS`; None takes the first that supports the call.
    Returns:
        y in the dtype of x, and y_T (B, H, K) as it was before it was rounded to that dtype. O(T) memory, forward
        and backward.
    Raises:
        TesseraError: shapes that do not fit, or a `backend` that cannot run this call.
    """
    call = RecurrenceCall(x, keep, new, initial)
    return BACKENDS.choose(call, backend).run(call)


__all__ = ["BACKENDS", "RecurrenceCall", "linear_recurrence"]
