"""The linear recurrence as products with one small matrix per chunk of time: O(T) memory (see README.md)."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from tessera.base.devices import is_exporting
from tessera.base.first_derivative import fresh_result, only_first_derivative
from tessera.ops.linear_recurrence.call import RecurrenceCall

CHUNK = 32
# 2^-1200 is zero in float64, and factors only get smaller: clamping there changes nothing. (PyTorch's exp takes ten
# times as long where it underflows; its exp2 does not.)
LOG2_ZERO = -1200.0


def run(call: RecurrenceCall) -> tuple[Tensor, Tensor]:
    """`y_t = new_t x_t + keep_t y_{t-1}`."""
    if call.x.shape[2] == 1:
        return _step(call)
    return _LinearRecurrence.apply(call.x, call.new, call.keep, call.initial, call.state_dtype)


def _step(call: RecurrenceCall) -> tuple[Tensor, Tensor]:
    """One step needs no matrix: decoding."""
    x, dtype = call.x[:, :, 0].to(call.state_dtype), call.state_dtype
    if call.new is not None:
        initial = torch.zeros_like(x) if call.initial is None else call.initial
        state = torch.lerp(initial, x, call.new[:, :, 0, None].to(dtype))
    elif call.initial is None:
        state = x
    else:
        state = torch.addcmul(x, call.keep[:, :, 0, None].to(dtype), call.initial)
    return state.unsqueeze(2).to(call.x.dtype), state


class _LinearRecurrence(torch.autograd.Function):
    """Backward is the same scan from the end, `total_t = grad_t + keep_{t+1} total_{t+1}`."""

    @staticmethod
    def forward(ctx, x, new, keep, initial, dtype):
        """`y_t = new_t x_t + keep_t y_{t-1}` like x, and y_T (B, H, K) in `dtype`, in which it is summed."""
        y = scan(scaled(x, new, dtype), logarithm(keep), initial)
        last = y[:, :, -1].clone()
        y = fresh_result(y.to(x.dtype))
        ctx.dtype = dtype
        ctx.save_for_backward(None if new is None else x, new, keep, initial, y)
        ctx.set_materialize_grads(False)
        return y, last

    @staticmethod
    @only_first_derivative("linear_recurrence")
    def backward(ctx, grad, grad_last):
        """Given the gradients of y, y_T: `d x_t = new_t total_t`, `d y_0 = keep_1 total_1`; see `_factor_gradient`."""
        x, new, keep, initial, y = ctx.saved_tensors
        grad = torch.zeros_like(y, dtype=ctx.dtype) if grad is None else grad.to(ctx.dtype, copy=grad_last is not None)
        if grad_last is not None:
            grad[:, :, -1] += grad_last
        total = scan(grad, logarithm(keep), reverse=True)
        d_factor = None
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            d_factor = _factor_gradient(total, x, y, initial)
        d_keep = d_factor.to(keep.dtype).sum_to_size(keep.shape) if new is None and d_factor is not None else None
        d_initial = None if initial is None else total[:, :, 0] * keep[:, :, :1].to(total.dtype)
        d_x = scaled(total, new, ctx.dtype).to(y.dtype)
        d_new = None if new is None or d_factor is None else d_factor.to(new.dtype)
        return d_x, d_new, d_keep, d_initial, None


def _factor_gradient(total: Tensor, x: Tensor | None, y: Tensor, initial: Tensor | None) -> Tensor:
    """(B, H, T): `total_t . y_{t-1}`, the derivative by keep_t; given x, `total_t . (x_t - y_{t-1})`, that by new_t
    when keep_t = 1 - new_t."""
    before, first = y[:, :, :-1].to(total.dtype), None if initial is None else initial.unsqueeze(2)
    if x is None:
        later = torch.linalg.vecdot(total[:, :, 1:], before)
        if first is None:
            return pad(later, (1, 0))
        return torch.cat([torch.linalg.vecdot(total[:, :, :1], first), later], 2)
    x = x.to(total.dtype)
    begin = x[:, :, :1] if first is None else x[:, :, :1] - first
    change = torch.cat([begin, x[:, :, 1:] - before], dim=2)
    return torch.linalg.vecdot(total, change)


def scaled(x: Tensor, new: Tensor | None, dtype: torch.dtype) -> Tensor:
    """`new_t x_t` in `dtype`."""
    return x.to(dtype) if new is None else x.to(dtype) * new.to(dtype)[..., None]


def logarithm(keep: Tensor) -> Tensor:
    """`log2 keep` in float64, at least LOG2_ZERO."""
    return keep.double().log2().clamp(min=LOG2_ZERO)


def scan(x: Tensor, log_keep: Tensor, carry: Tensor | None = None, reverse: bool = False) -> Tensor:
    """`y_t = x_t + keep_t y_{t-1}` from y_0 = `carry`; reverse: `y_t = x_t + keep_{t+1} y_{t+1}`, without a carry.

    x (B, H, T, K), log_keep (B or 1, H, T) in float64, at most 0 and finite.
    """
    steps = x.shape[2]
    if is_exporting():
        return _scan_any_length(x, log_keep, carry)
    chunk = min(CHUNK, steps)
    padding = -steps % chunk
    if padding:  # by nothing would copy, with strides that torch.compile does not expect
        x, log_keep = pad(x, (0, 0, 0, padding)), pad(log_keep, (0, padding))
    x, log_keep = x.unflatten(2, (-1, chunk)), log_keep.unflatten(2, (-1, chunk))
    reach = log_keep.cumsum(dim=-1)
    with torch.autocast(x.device.type, enabled=False):
        y = _within_chunks(reach, x.dtype, reverse) @ x
    entering, weight = _between_chunks(y, log_keep, reach, carry, reverse)
    if entering is not None:
        y = torch.addcmul(y, weight.exp2().to(x.dtype)[..., None], entering.unsqueeze(3))
    return y.flatten(2, 3)[:, :, :steps]


def _scan_any_length(x: Tensor, log_keep: Tensor, carry: Tensor | None) -> Tensor:
    """`scan` forwards as one program for all lengths, for `torch.export`: no step of it may depend on the length.

    The sums that enter the chunks come from one matrix (chunks x chunks), without recursion.
    """
    steps = x.shape[2]
    chunks = (steps + CHUNK - 1) // CHUNK + 2  # so that there is never just one, which torch takes for another case
    padding = chunks * CHUNK - steps
    x = pad(x, (0, 0, 0, padding)).unflatten(2, (chunks, CHUNK))
    log_keep = pad(log_keep.expand(x.shape[0], -1, -1), (0, padding)).unflatten(2, (chunks, CHUNK))
    reach = log_keep.cumsum(dim=-1)
    y = _within_chunks(reach, x.dtype, False) @ x
    between = reach[..., -1].clamp(min=LOG2_ZERO).cumsum(-1)
    ends = _within_chunks(between, y.dtype, False) @ y[..., -1, :]
    if carry is not None:
        ends = ends + between.exp2().to(y.dtype)[..., None] * carry.to(y.dtype).unsqueeze(2)
    first = torch.zeros_like(ends[:, :, :1]) if carry is None else carry.to(y.dtype).unsqueeze(2)
    entering = torch.cat([first, ends[:, :, :-1]], 2)
    y = torch.addcmul(y, reach.exp2().to(y.dtype)[..., None], entering.unsqueeze(3))
    return y.flatten(2, 3)[:, :, :steps]


def _within_chunks(reach: Tensor, dtype: torch.dtype, reverse: bool) -> Tensor:
    """What step j of a chunk adds to step i: `2^(L_i - L_j)` for j <= i, with the sums L = `reach` of log_keep;
    reverse: the transpose."""
    between = reach[..., :, None] - reach[..., None, :]
    matrix = between.exp2_().tril_().to(dtype)
    return matrix.mT if reverse else matrix


def _between_chunks(
    y: Tensor, log_keep: Tensor, reach: Tensor, carry: Tensor | None, reverse: bool
) -> tuple[Tensor | None, Tensor]:
    """The sum that enters each chunk (B, H, chunks, K), and log2 of its weight at each step: what the chunks alone
    leave at their ends obeys the same recurrence, with one step per chunk."""
    chunks = y.shape[2]
    if reverse:
        if chunks == 1:
            return None, reach
        # From the first step of the next chunk back to each step of this one.
        next_keep = pad(log_keep[:, :, 1:, 0], (0, 1))[..., None]
        weight = reach[..., -1:] - reach + next_keep
        per_chunk = pad(weight[:, :, :-1, 0], (1, 0)).clamp(min=LOG2_ZERO)
        return pad(scan(y[..., 0, :], per_chunk, reverse=True)[:, :, 1:], (0, 0, 0, 1)), weight
    if chunks == 1:
        return None if carry is None else carry.to(y.dtype).unsqueeze(2), reach
    ends = scan(y[..., -1, :], reach[..., -1].clamp(min=LOG2_ZERO), carry)[:, :, :-1]
    first = torch.zeros_like(ends[:, :, :1]) if carry is None else carry.to(y.dtype).unsqueeze(2)
    return torch.cat([first, ends], dim=2), reach
