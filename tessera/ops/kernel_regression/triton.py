"""Kernel regression on GPUs: fused Triton kernels that keep O(T) numbers and skip the tiles outside the window.

All kernels but nearest neighbours. Tensors on the CPU run only under Triton's interpreter (`TRITON_INTERPRET=1`, set
before triton is imported), which is for tests: it is slow.
"""

import torch
from torch import Tensor

from tessera.kernels.base import Kernel
from tessera.kernels.gaussian import Gaussian
from tessera.kernels.normalized_relu import NormalizedReLU
from tessera.kernels.rectified_polynomial import AdaptivePolynomial
from tessera.kernels.relumax import ReLUmax
from tessera.ops.kernel_regression.call import Call
from tessera.ops.kernel_regression.triton_op import regress
from tessera.ops.kernel_regression.triton_plan import Plan
from tessera.ops.triton_device import unsupported_device

WIDEST = 256


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
    delay = None if call.window is None else call.window.delay
    return Plan(
        *family,
        call.query_offset,
        None if isinstance(delay, Tensor) else delay,
        None if call.window is None else call.window.span,
        delay if isinstance(delay, Tensor) else None,
        call.query_documents,
        call.pair_documents,
    )


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
