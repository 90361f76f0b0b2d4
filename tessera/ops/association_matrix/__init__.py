"""The association matrix: a quasi-linear memory of key and value pairs that is read and rewritten (ARMT, section 2)."""

from torch import Tensor

from tessera.base.arguments import explains_mistakes
from tessera.base.shapes import Bool, Float
from tessera.ops import float16_autocast
from tessera.ops.association_matrix import reference, triton
from tessera.ops.association_matrix.call import UPDATE_ORDERS, ReadCall, WriteCall
from tessera.ops.backends import Backends
from tessera.ops.float16_autocast import widened

# In order of preference: the first that supports the call runs it.
BACKENDS = Backends("association_matrix", triton=triton, reference=reference)


@explains_mistakes
def read_association(
    matrix: Float[Tensor, "B P V"],
    normaliser: Float[Tensor, "B P"],
    query: Float[Tensor, "B T P"],
    *,
    eps: float = 1e-5,
    backend: str | None = None,
) -> Float[Tensor, "B T V"]:
    """What the memory associates with each query: `A^T phi(q) / (z . phi(q) + eps)`.

    Args:
        matrix: A (B, P, V). normaliser: z (B, P). query: features phi(q) >= 0 (B, T, P).
        eps: which also makes an empty memory (A = 0, z = 0) answer exactly 0.
        backend: one of `BACKENDS`; None takes the first that supports the call.
    Returns:
        (B, T, V). Cost: 2 T P V multiplications and no memory beyond the answer.
    Raises:
        TesseraError: shapes that do not fit, or a `backend` that cannot run this call.
    """
    call = ReadCall(widened(matrix), widened(normaliser), widened(query), eps)
    with float16_autocast.without(matrix):
        return BACKENDS.choose(call, backend).run(call)


@explains_mistakes
def write_association(
    matrix: Float[Tensor, "B P V"],
    normaliser: Float[Tensor, "B P"],
    key: Float[Tensor, "B M P"],
    value: Float[Tensor, "B M V"],
    strength: Float[Tensor, "B M"],
    empty: Bool[Tensor, " B"],
    *,
    correction: bool = True,
    order: str = "parallel",
    eps: float = 1e-5,
    gate_normaliser: bool = False,
    backend: str | None = None,
) -> tuple[Float[Tensor, "B P V"], Float[Tensor, "B P"]]:
    """The memory after `m` pairs were written by the delta rule with gamma-correction (ARMT, section 2 and B.1).

    With `vbar_i = A^T phi(k_i) / (z . phi(k_i) + eps)` and, when `correction`,
    `gamma_i = clip(1 - (z . phi(k_i) + eps) / (|phi(k_i)|^2 + eps), 0, 1)` (no gradient; otherwise gamma = 1):
    `A += sum_i b_i phi(k_i) (v_i - vbar_i)^T`, `z += sum_i gamma_i phi(k_i)`. An empty memory has vbar = 0, gamma = 1.

    Args:
        matrix: A (B, P, V). normaliser: z (B, P). key: features phi(k) (B, M, P). value: (B, M, V).
        strength: b in [0, 1], (B, M). empty: booleans (B,), rows into which nothing was written yet.
        order: "parallel": all pairs read the A and z from before the call (the published code); "sequential": pair i
            reads what pair i - 1 left (the paper's formula). They agree for M = 1.
        gate_normaliser: whether a pair of strength exactly 0 leaves z as it is too. The published update has no such
            pairs.
    Returns:
        The new A and z. Cost: 4 M P V multiplications.
    Raises:
        TesseraError: shapes that do not fit, an unknown order, or a `backend` that cannot run this call.
    """
    before, pairs = (widened(matrix), widened(normaliser)), (widened(key), widened(value), widened(strength))
    call = WriteCall(*before, *pairs, empty, correction, order, eps, gate_normaliser)
    with float16_autocast.without(matrix):
        return BACKENDS.choose(call, backend).run(call)


__all__ = ["BACKENDS", "UPDATE_ORDERS", "ReadCall", "WriteCall", "read_association", "write_association"]
