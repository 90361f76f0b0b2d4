"""Kernel regression over a window of stored pairs: the one operation that every memory of the library performs."""

from dataclasses import replace

import torch
from torch import Tensor

from tessera.base.arguments import explains_mistakes
from tessera.base.devices import device_type, is_exporting, is_gpu, is_readable
from tessera.base.shapes import Float, Int
from tessera.kernels import Kernel, kernel_from_config
from tessera.ops.backends import Backend, Backends
from tessera.ops.kernel_regression import chunked, cpu_bfloat16, fused, interception, reference, shared_pairs, triton
from tessera.ops.kernel_regression.call import Call, Window
from tessera.ops.kernel_regression.interception import intercepted
from tessera.ops.kernel_regression.reference import QueryWeights, chosen_query_weights
from tessera.ops.kernel_regression.score_scale import scale_of_scores

# In order of preference: the first that supports the call runs it.
BACKENDS = Backends(
    "kernel_regression", cpu_bfloat16=cpu_bfloat16, fused=fused, triton=triton, chunked=chunked, reference=reference
)

LARGEST_FUSED_SLOPE = 1000.0
# Triton walks over all pairs of a head in one program; from some number of pairs on, the GPU lies idle too long.
LONGEST_TRITON_SINGLE = 16_384


@explains_mistakes
def kernel_regression(
    query: Float[Tensor, "B H T K"],
    key: Float[Tensor, "#B H N K"],
    value: Float[Tensor, "#B H N V"],
    *,
    kernel: Kernel | str | dict,
    slope: Float[Tensor, "..."] | float | None = None,
    intercept: Float[Tensor, "..."] | float | None = None,
    inverse_bandwidth: Float[Tensor, "..."] | float | None = None,
    window: Window | None = None,
    query_offset: int = 0,
    query_documents: Int[Tensor, "B T"] | None = None,
    pair_documents: Int[Tensor, "B N"] | None = None,
    dropout: float = 0.0,
    backend: str | None = None,
) -> Float[Tensor, "B H T V"]:
    """Nadaraya-Watson estimates `y_T = sum_i w_i v_i` of stored values, given stored keys (Memory Mosaics, equation 7).

    The weights are `kernel.weights(slope * (query . key_i) + intercept)` over the pairs that the query sees: those of
    `window` (None: all), of its own document. A query without any visible pair gets 0.

    Args:
        query: (B, H, T, K). key: (B, H, N, K). value: (B, H, N, V). Of pairs that all sequences share, key and value
            may have 1 in place of B, so that no gradients of B copies are computed.
        kernel: the similarity kernel or its name (see `kernel_from_config`).
        inverse_bandwidth: beta = 1 / h^2 > 0, a number or broadcastable to (B, H, T). In its place `slope` and
            `intercept`, which are `kernel.affine(beta)` unless a model has learned others: only a kernel whose own
            intercept is 0 may leave `intercept` out.
        query_offset: query j stands at position `query_offset + j`, pair i at position i.
        query_documents, pair_documents: integers (B, T) and (B, N); a negative pair document means "not stored".
        dropout: probability of dropping a weight (kept ones are scaled up).
        backend: one of `BACKENDS`; None takes the first that supports the call.
    Returns:
        (B, H, T, V), in the dtype of the inputs.
    Raises:
        TesseraError: an unknown kernel, shapes or dtypes that do not agree, or a `backend` that cannot run this call.

    >>> torch.manual_seed(0) and None
    >>> keys = torch.nn.functional.normalize(torch.randn(1, 1, 4, 8), dim=-1)
    >>> kernel_regression(keys, keys, torch.eye(4)[None, None], kernel="epanechnikov", slope=50.0).argmax(-1)
    tensor([[[0, 1, 2, 3]]])
    """
    kernel = kernel_from_config(kernel)
    scores = scale_of_scores(query, kernel, slope, intercept, inverse_bandwidth)
    call = Call(query, key, value, kernel, *scores, window, query_offset, query_documents, pair_documents, dropout)
    call.check()
    if not interception.is_active():
        return _run(call, backend)
    seen = shared_pairs.expanded(call)

    def run(changed: Call) -> Tensor:
        if changed.key is seen.key and changed.value is seen.value:  # shared as before: the same numbers, bit for bit
            changed = replace(changed, key=key, value=value)
        return _run(changed, backend)

    return interception.run_intercepted(seen, run)


def _run(call: Call, backend: str | None) -> Tensor:
    if shared_pairs.is_one_sequence(call):
        return shared_pairs.run(call, lambda joined: _run(joined, backend))
    call = shared_pairs.expanded(call).trimmed()
    return choose_backend(call, backend).run(call)


def choose_backend(call: Call, backend: str | None = None) -> Backend:
    """The implementation that runs `call`: the forced one, or the first of `BACKENDS` that takes it."""
    if backend is None and 0 in (*call.query.shape, *call.value.shape):
        return reference  # nothing to compute
    is_one = isinstance(call.query.shape[2], int) and call.query.shape[2] == 1 and device_type(call.query) == "cpu"
    if backend is None and is_exporting() and not is_one:
        # The others cut a call by its length, of which an exported program knows nothing.
        return fused if fused.unsupported_reason(call) is None else reference
    single = is_one or (call.query.shape[2] == 1 and fused.unsupported_reason(call) is not None)
    if backend is None and single:
        # One query against N pairs is a matrix-vector product: nothing to fuse, to tile or to save. But on a GPU the
        # search for a threshold waits after each of its sweeps, and Triton's is one launch.
        is_short = is_gpu(call.query) and call.key.shape[2] <= LONGEST_TRITON_SINGLE
        return triton if is_short and triton.unsupported_reason(call) is None else reference
    return BACKENDS.choose(call, backend, _is_preferred)


def _is_preferred(name: str, call: Call) -> bool:
    """Whether an implementation that can run `call` should do so unasked."""
    if name == "fused":
        # Fused attention sums w_i g_i and each g_i in different orders in its backward pass, and the rounding that
        # should cancel is multiplied by the slope: 1e-7 in float64 for a saturated head of slope 1e9, and in float32
        # more than the gradient itself. (On a GPU, and compiled, looking at the slope would cost a wait.)
        readable = is_readable(call.query)
        exact = call.query.dtype == torch.float64 or (readable and call.largest_slope() > LARGEST_FUSED_SLOPE)
        # It reads a mask of O(T N) bytes where the others skip what the mask hides.
        other = triton if is_gpu(call.query) else chunked
        return not exact and not (fused.needs_mask(call) and other.unsupported_reason(call) is None)
    # On the CPU Triton runs in its interpreter only, which is for tests.
    return name != "triton" or is_gpu(call.query)


__all__ = [
    "BACKENDS",
    "Call",
    "QueryWeights",
    "Window",
    "choose_backend",
    "chosen_query_weights",
    "intercepted",
    "kernel_regression",
]
