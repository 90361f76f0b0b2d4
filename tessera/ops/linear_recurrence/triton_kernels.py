"""Triton kernels of the linear recurrence `y_t = new_t x_t + keep_t y_{t-1}`, that leaky and gated averages share.

A program owns the channels of one head in one segment of time and steps through it with the state in registers; the
loads of STEPS time steps are issued before the first is used, so that memory stays busy. When sequences times heads are
too few to fill the GPU, time is cut into segments: `segment_ends` reads x once more to leave what each segment alone
adds to the state, and `scan` starts from the fold of the segments before its own.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tessera.ops.triton_device import interleaved
from tessera.ops.triton_product import INTERPRETED, matrix, rowwise

# Programs that keep the memory of a Hopper GPU busy when each has BYTES_IN_FLIGHT under way (benchmarks/gpu-notes.md).
# With fewer heads of sequences than that, time is cut, at the price of reading x once more.
PROGRAMS = 1400
BYTES_IN_FLIGHT = 4096
SHORTEST_SEGMENT = 128


@triton.jit
def start_of(matrix, index, heads):
    """Address of the first time step of one head of one sequence; `index` counts heads of all sequences."""
    return matrix.base + (index // heads) * matrix.batch + (index % heads) * matrix.head


@triton.jit
def row_at(position, steps, REVERSE: tl.constexpr):
    """The time step that stands at `position` in the order of the scan, 64-bit."""
    row = steps - 1 - position if REVERSE else position
    return row.to(tl.int64)


@triton.jit
def load_block(start, stride, position, end, steps, channels, width, REVERSE: tl.constexpr, STEPS: tl.constexpr):
    """STEPS rows of channels in the order of the scan, as a tuple; 0 from `end` on."""
    rows = ()
    for i in tl.static_range(STEPS):
        step = position + i + tl.zeros_like(channels)
        address = start + row_at(step, steps, REVERSE) * stride + channels
        row = tl.load(address, mask=(step < end) & (channels < width), other=0.0).to(tl.float32)
        rows = rows + (row,)  # type: ignore[assignment]  # Triton has no annotations of variables
    return rows


@triton.jit
def load_factors(start, stride, position, end, steps, REVERSE: tl.constexpr, SHIFT: tl.constexpr, STEPS: tl.constexpr):
    """STEPS factors, one per time step, as a tuple; 1 from `end` on. SHIFT 1: the factors one step later."""
    factors = ()
    for i in tl.static_range(STEPS):
        step = position + i + tl.zeros((1,), tl.int32)
        row = row_at(step, steps, REVERSE) + SHIFT
        inside = (step < end) & (row < steps)
        factor = tl.load(start + row * stride, mask=inside, other=1.0).to(tl.float32)
        factors = factors + (factor,)  # type: ignore[assignment]  # see above
    return factors


@triton.jit
def segment_ends(
    x, new, keep, ends, shrinks, steps, length, heads, width,
    GATED: tl.constexpr, REVERSE: tl.constexpr, STEPS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """State after each segment when it starts from 0, and the product of its factors."""
    index = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * length
    end = tl.minimum(first + length, steps)
    channels = tl.arange(0, CHANNELS)
    state = tl.zeros((CHANNELS,), tl.float32)
    shrink = tl.zeros((1,), tl.float32) + 1.0
    x_start, keep_start = start_of(x, index, heads), start_of(keep, index, heads)
    new_start = start_of(new, index, heads)
    for position in range(first, end, STEPS):
        rows = load_block(x_start, x.row, position, end, steps, channels, width, REVERSE, STEPS)
        factors = load_factors(keep_start, keep.row, position, end, steps, REVERSE, REVERSE, STEPS)
        if GATED:
            shares = load_factors(new_start, new.row, position, end, steps, REVERSE, 0, STEPS)
        for i in tl.static_range(STEPS):
            state = state * factors[i] + (rows[i] * shares[i] if GATED else rows[i])
            shrink = shrink * factors[i]
    slot = index * tl.num_programs(0) + tl.program_id(0)
    tl.store(ends + slot * CHANNELS + channels, state)
    tl.store(shrinks + slot + tl.zeros((1,), tl.int32), shrink)


@triton.jit
def state_before(initial, ends, shrinks, index, width, CHANNELS: tl.constexpr):
    """The state that enters this program's segment: `initial` (B H, width) folded through the earlier segments."""
    channels = tl.arange(0, CHANNELS)
    state = tl.load(initial + index * width + channels, mask=channels < width, other=0.0).to(tl.float32)
    slot = index * tl.num_programs(0)
    for earlier in range(0, tl.program_id(0)):
        shrink = tl.load(shrinks + slot + earlier + tl.zeros((1,), tl.int32))
        state = state * shrink + tl.load(ends + (slot + earlier) * CHANNELS + channels)
    return state


@triton.jit
def scan(
    x, new, keep, initial, ends, shrinks, y, last, steps, length, heads, width,
    GATED: tl.constexpr, STEPS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """`y`, and the state after the last step in `last` (B H, width), float32."""
    index = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * length
    end = tl.minimum(first + length, steps)
    channels = tl.arange(0, CHANNELS)
    state = state_before(initial, ends, shrinks, index, width, CHANNELS)
    x_start, keep_start, y_start = start_of(x, index, heads), start_of(keep, index, heads), start_of(y, index, heads)
    new_start = start_of(new, index, heads)
    for position in range(first, end, STEPS):
        rows = load_block(x_start, x.row, position, end, steps, channels, width, False, STEPS)
        factors = load_factors(keep_start, keep.row, position, end, steps, False, 0, STEPS)
        if GATED:
            shares = load_factors(new_start, new.row, position, end, steps, False, 0, STEPS)
        for i in tl.static_range(STEPS):
            state = state * factors[i] + (rows[i] * shares[i] if GATED else rows[i])
            step = position + i + tl.zeros_like(channels)
            inside = (step < end) & (channels < width)
            tl.store(y_start + step.to(tl.int64) * y.row + channels, state.to(y.base.dtype.element_ty), mask=inside)
    if end == steps:
        tl.store(last + index * width + channels, state, mask=channels < width)


@triton.jit
def scan_backward(
    grad, x, y, new, keep, initial, start_state, ends, shrinks, dx, pulls, last, steps, length, heads, width,
    GATED: tl.constexpr, STEPS: tl.constexpr, CHANNELS: tl.constexpr
):  # fmt: skip
    """From the end: `total_t = grad_t + keep_{t+1} total_{t+1}`, `dx_t = new_t total_t`; the total of step 1 in `last`.

    `pulls` (B H, T): total_t . y_{t-1}, the derivative by keep_t; GATED: total_t . (x_t - y_{t-1}), the derivative by
    new_t when keep_t = 1 - new_t. `initial` enters at the end, `start_state` is y_0.
    """
    index = tl.program_id(1).to(tl.int64)
    first = tl.program_id(0) * length
    end = tl.minimum(first + length, steps)
    channels = tl.arange(0, CHANNELS)
    total = state_before(initial, ends, shrinks, index, width, CHANNELS)
    before = tl.load(start_state + index * width + channels, mask=channels < width, other=0.0).to(tl.float32)
    grad_start, x_start, y_start = start_of(grad, index, heads), start_of(x, index, heads), start_of(y, index, heads)
    keep_start, new_start = start_of(keep, index, heads), start_of(new, index, heads)
    dx_start = start_of(dx, index, heads)
    for position in range(first, end, STEPS):
        grads = load_block(grad_start, grad.row, position, end, steps, channels, width, True, STEPS)
        # Counted from the end, y_{t-1} stands one place further.
        earlier = load_block(y_start, y.row, position + 1, end + (end < steps), steps, channels, width, True, STEPS)
        factors = load_factors(keep_start, keep.row, position, end, steps, True, 1, STEPS)
        if GATED:
            rows = load_block(x_start, x.row, position, end, steps, channels, width, True, STEPS)
            shares = load_factors(new_start, new.row, position, end, steps, True, 0, STEPS)
        for i in tl.static_range(STEPS):
            total = total * factors[i] + grads[i]
            step = position + i + tl.zeros_like(channels)
            inside = (step < end) & (channels < width)
            row = row_at(step, steps, True)
            previous = tl.where(step == steps - 1, before, earlier[i])
            pull = tl.sum(total * (rows[i] - previous if GATED else previous), 0)
            column = tl.zeros((1,), tl.int64) + steps - 1 - (position + i)
            tl.store(pulls + index * steps + column, pull, mask=column >= steps - end)
            gradient = total * shares[i] if GATED else total
            tl.store(dx_start + row * dx.row + channels, gradient.to(dx.base.dtype.element_ty), mask=inside)
    if end == steps:
        tl.store(last + index * width + channels, total, mask=channels < width)


class _Layout:
    """Segments of time and the launch constants of one recurrence over x (B, H, T, K)."""

    def __init__(self, x: Tensor, backward: bool = False) -> None:
        batch, self.heads, self.steps, self.width = x.shape
        self.series = batch * self.heads
        most = 3 if INTERPRETED else PROGRAMS // self.series
        shortest = 8 if INTERPRETED else SHORTEST_SEGMENT
        segments = max(1, min(most, self.steps // shortest))
        # Backward, two or three tensors are under way at once.
        row_bytes = self.width * x.element_size() * (2 if backward else 1)
        self.unrolled = 4 if INTERPRETED else min(32, max(8, triton.next_power_of_2(BYTES_IN_FLIGHT // row_bytes)))
        # Whole blocks of steps, so that a block never crosses into the next segment.
        self.length = triton.cdiv(triton.cdiv(self.steps, segments), self.unrolled) * self.unrolled
        self.segments = triton.cdiv(self.steps, self.length)
        self.channels = triton.next_power_of_2(self.width)
        self.ends = torch.empty(self.series, self.segments, self.channels, dtype=torch.float32, device=x.device)
        self.shrinks = torch.empty(self.series, self.segments, dtype=torch.float32, device=x.device)

    @property
    def grid(self) -> tuple[int, int]:
        """Programs: one for each segment of each series."""
        return self.segments, self.series

    def sizes(self) -> tuple[int, int, int, int]:
        """What each kernel takes: steps, steps of a segment, heads, width."""
        return self.steps, self.length, self.heads, self.width

    def constants(self, gated: bool) -> dict[str, object]:
        """What each kernel is compiled for."""
        warps = max(1, min(8, self.channels // 128))
        return {"GATED": gated, "STEPS": self.unrolled, "CHANNELS": self.channels, "num_warps": warps}

    def close_segments(self, x: Tensor, new: Tensor | None, keep: Tensor, reverse: bool) -> None:
        """Fill `ends` and `shrinks`: what each segment adds to its carry, and by what it multiplies it."""
        if self.segments > 1:
            segment_ends[self.grid](
                matrix(x), matrix(keep if new is None else new), matrix(keep), self.ends, self.shrinks, *self.sizes(),
                REVERSE=reverse, **self.constants(new is not None)
            )  # fmt: skip


def forward(x: Tensor, new: Tensor | None, keep: Tensor, initial: Tensor | None) -> tuple[Tensor, Tensor]:
    """What `triton.recur` returns. Two passes over memory, read and write; three when time is cut into segments."""
    x = rowwise(x)
    layout, y = _Layout(x), interleaved(x, x.shape[3])
    first = x.new_zeros(layout.series, layout.width) if initial is None else initial.contiguous()
    last = torch.empty(layout.series, layout.width, dtype=torch.float32, device=x.device)
    layout.close_segments(x, new, keep, reverse=False)
    scan[layout.grid](
        matrix(x), matrix(keep if new is None else new), matrix(keep), first, layout.ends, layout.shrinks, matrix(y),
        last, *layout.sizes(), **layout.constants(new is not None)
    )  # fmt: skip
    return y, last.view(*x.shape[:2], layout.width)


def backward(
    grad: Tensor, x: Tensor, y: Tensor, new: Tensor | None, keep: Tensor, initial: Tensor | None, final: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """What `triton.recur_backward` returns."""
    grad, x = rowwise(grad), rowwise(x)
    layout, dx = _Layout(grad, backward=True), interleaved(x, x.shape[3])
    zeros = x.new_zeros(layout.series, layout.width)
    enters = zeros if final is None else final.contiguous()
    first = zeros if initial is None else initial.contiguous()
    pulls = torch.empty(x.shape[:3], dtype=torch.float32, device=x.device)
    last = torch.empty(layout.series, layout.width, dtype=torch.float32, device=x.device)
    layout.close_segments(grad, None, keep, reverse=True)
    scan_backward[layout.grid](
        matrix(grad), matrix(x), matrix(y), matrix(keep if new is None else new), matrix(keep), enters, first,
        layout.ends, layout.shrinks, matrix(dx), pulls, last, *layout.sizes(), **layout.constants(new is not None)
    )  # fmt: skip
    return dx, pulls, last.view(*x.shape[:2], layout.width)
