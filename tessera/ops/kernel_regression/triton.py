"""Kernel regression on GPUs: fused Triton kernels that keep O(T) numbers and skip the tiles outside the window.

All kernels but nearest neighbours. Tensors on the CPU run only under Triton's interpreter (`TRITON_INTERPRET=1`, set
before triton is imported), which is for tests: it is slow.

Being a registered operator, `torch.compile` takes it as one step of its graph, and tensors without data (meta, fake)
pass through it. Nothing here needs triton itself.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from tessera.base.first_derivative import only_first_derivative
from tessera.kernels import Gaussian, Kernel, NormalizedReLU, ReLUmax
from tessera.kernels.rectified_polynomial import AdaptivePolynomial
from tessera.ops.kernel_regression.call import Call
from tessera.ops.triton_device import interleaved, unsupported_device

WIDEST = 256
_PLAN = (
    "str family, float order, float margin, SymInt offset, SymInt? delay, SymInt? span, Tensor? delays, "
    "Tensor? query_documents, Tensor? pair_documents, int[]? forward_tiles, int[]? backward_tiles"
)


class Plan(NamedTuple):
    """What the kernels must compute, apart from the differentiable tensors, in the types of an operator's schema."""

    family: str  # see `triton_forward`
    order: float
    margin: float
    offset: int  # position of the first query
    delay: int | None  # None: without a window, or with one delay per sequence
    span: int | None
    delays: Tensor | None  # (B,)
    query_documents: Tensor | None
    pair_documents: Tensor | None
    forward_tiles: list[int] | None = None  # see `Tiles`; None: `tiles_of` chooses
    backward_tiles: list[int] | None = None


def unsupported_reason(call: Call) -> str | None:
    """Why this call cannot run here, or None."""
    q, v = call.query, call.value
    if family_of(call.kernel) is None:
        return f"the Triton kernels do not compute the kernel {call.kernel.name!r}"
    if call.dropout:
        return "the Triton kernels have no dropout of weights"
    if q.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        return f"the Triton kernels compute in float32, float16 and bfloat16, not {q.dtype}"
    if max(q.shape[-1], v.shape[-1]) > WIDEST:
        return f"heads may be at most {WIDEST} wide; got {q.shape[-1]} and {v.shape[-1]}"
    if q.shape[0] * q.shape[1] > 65535:
        return f"batch times heads may be at most 65535; got {q.shape[0] * q.shape[1]}"
    return unsupported_device(q)


def run(call: Call, forward_tiles: list[int] | None = None, backward_tiles: list[int] | None = None) -> Tensor:
    """`y_T = sum_i w_i v_i`; memory O(T) in the sequence length, forward and backward.

    `forward_tiles` and `backward_tiles` (see `Plan`) take the place of the built-in choice, for tuning.
    """
    query, key, value = call.query, call.key, call.value
    shape = query.shape[:3]
    if query.numel() == 0 or value.numel() == 0:
        return call.zeros()
    plan = plan_of(call)._replace(forward_tiles=forward_tiles, backward_tiles=backward_tiles)
    slope = call.slope.to(query.device).expand(shape)
    if plan.family == "fixed" and call.intercept is not None:
        intercept = call.intercept.to(query.device).expand(shape)
    else:
        # The other kernels do not change when a row of scores moves: an intercept has no effect and no gradient.
        intercept = slope.detach().new_zeros(()).expand(shape)
    tensors = (query, key, value, slope, intercept)
    save = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return regress(*tensors, save, *plan)[0]


def plan_of(call: Call) -> Plan:
    """What the operator must know of the call."""
    family = family_of(call.kernel)
    assert family is not None, "unsupported_reason refuses others"
    name, order, margin = family
    return Plan(name, order, margin, *call.visibility())


def family_of(kernel: Kernel) -> tuple[str, float, float] | None:
    """(family, order, margin) of a kernel as the Triton kernels know it; None: they do not."""
    if isinstance(kernel, Gaussian):
        return "gaussian", 1.0, 0.0
    if isinstance(kernel, AdaptivePolynomial) and not isinstance(kernel.order, Tensor):
        return "adaptive", float(kernel.order), 0.0
    if isinstance(kernel, ReLUmax):
        return "anchored", 1.0, float(kernel.margin)
    if isinstance(kernel, NormalizedReLU) and not kernel.min_total:
        return "fixed", 1.0, 0.0
    return None


def unwritten_results(query: Tensor, value: Tensor, family: str, save: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Memory for what `regress` returns."""
    shape, width = query.shape[:3], value.shape[-1]
    statistics = query.new_empty(3, *shape, dtype=torch.float32)
    best = query.new_empty(shape if family == "anchored" else (0,), dtype=torch.int32)
    smooth = interleaved(query, width) if family == "adaptive" and save else query.new_empty(0)
    return interleaved(query, width), statistics, best, smooth


def unwritten_gradients(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Memory for what `regress_backward` returns."""
    d_slope = query.new_empty(query.shape[:3], dtype=torch.float32)
    d_query, d_key = interleaved(query, query.shape[-1]), interleaved(key, key.shape[-1])
    return d_query, d_key, interleaved(value, value.shape[-1]), d_slope, torch.empty_like(d_slope)


@torch.library.custom_op(
    "tessera::kernel_regression",
    mutates_args=(),
    schema=f"(Tensor query, Tensor key, Tensor value, Tensor slope, Tensor intercept, bool save, {_PLAN}) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
)
def regress(query, key, value, slope, intercept, save, *plan):
    """`y = sum_i w_i v_i` (B, H, T, V) from queries, keys, values, and the rows' slopes and intercepts (B, H, T).

    Behind y come what the backward pass needs: the statistics (3, B, H, T) of the queries, their best pairs (B, H, T)
    for ReLUmax, and for adaptive bandwidths, where `save` holds, one more y. What a family does not need is empty.
    """
    from tessera.ops.kernel_regression import triton_launch

    with torch.cuda.device_of(query):
        return triton_launch.forward(query, key, value, slope, intercept, save, Plan(*plan))


@regress.register_fake
def _(query, key, value, slope, intercept, save, *plan):
    return unwritten_results(query, value, Plan(*plan).family, save)


@torch.library.custom_op(
    "tessera::kernel_regression_backward",
    mutates_args=(),
    schema="(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor slope, Tensor statistics, Tensor best, "
    f"Tensor product, {_PLAN}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def regress_backward(grad, query, key, value, slope, statistics, best, product, *plan):
    """Gradients of query, key, value, slope and intercept (B, H, T); `product`: the y of which grad . y is taken."""
    from tessera.ops.kernel_regression import triton_launch

    with torch.cuda.device_of(query):
        return triton_launch.backward(grad, query, key, value, slope, statistics, best, product, Plan(*plan))


@regress_backward.register_fake
def _(grad, query, key, value, slope, statistics, best, product, *plan):
    return unwritten_gradients(query, key, value)


def _save(ctx, inputs, output) -> None:
    query, key, value, slope, _, _, *rest = inputs
    y, statistics, best, smooth = output
    plan = Plan(*rest)
    ctx.plan = plan._replace(delays=None, query_documents=None, pair_documents=None)
    masks = plan.delays, plan.query_documents, plan.pair_documents
    product = smooth if plan.family == "adaptive" else y
    ctx.save_for_backward(query, key, value, slope, statistics, best, product, *masks)
    ctx.set_materialize_grads(False)


@only_first_derivative("kernel_regression")
def _gradients(ctx, grad, *_):
    *tensors, delays, query_documents, pair_documents = ctx.saved_tensors
    plan = ctx.plan._replace(delays=delays, query_documents=query_documents, pair_documents=pair_documents)
    *gradients, d_intercept = regress_backward(grad, *tensors, *plan)
    # Only normalised ReLU changes when a row of scores moves.
    moved = d_intercept if plan.family == "fixed" else None
    return *gradients, moved, *[None] * (1 + len(plan))


regress.register_autograd(_gradients, setup_context=_save)
