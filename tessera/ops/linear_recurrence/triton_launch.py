"""Launching the kernels of `triton_kernels`: segments, and the recurrence forward and backward."""

import torch
import triton
from torch import Tensor

from tessera.ops.interleaved import interleaved
from tessera.ops.linear_recurrence import triton_kernels
from tessera.ops.linear_recurrence.triton_kernels import Series
from tessera.ops.triton_product import INTERPRETED

# Programs that keep the memory of a Hopper GPU busy when each has BYTES_IN_FLIGHT under way (benchmarks/gpu-notes.md).
# With fewer heads of sequences than that, time is cut, at the price of reading x once more.
PROGRAMS = 1400
BYTES_IN_FLIGHT = 4096
SHORTEST_SEGMENT = 128


def series(x: Tensor) -> Series:
    """`x` (B, H, T) or (B, H, T, K) as the kernels address it."""
    return Series(x, x.stride(0), x.stride(1), x.stride(2))


def dense(x: Tensor) -> Tensor:
    """`x` (B, H, T, K), copied only if its channels are not stored side by side."""
    return x if x.stride(3) == 1 else x.contiguous()


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
            triton_kernels.segment_ends[self.grid](
                series(x), series(keep if new is None else new), series(keep), self.ends, self.shrinks, *self.sizes(),
                REVERSE=reverse, **self.constants(new is not None)
            )  # fmt: skip


def forward(x: Tensor, new: Tensor | None, keep: Tensor, initial: Tensor | None) -> tuple[Tensor, Tensor]:
    """`y_t = new_t x_t + keep_t y_{t-1}` from y_0 = `initial`: y like x, and y_T (B, H, K) in float32.

    x: (B, H, T, K). new (None: all 1), keep: (B, H, T), any strides. Two passes over memory, read and write; three when
    time is cut into segments.
    """
    x = dense(x)
    layout, y = _Layout(x), interleaved(x, x.shape[3])
    first = x.new_zeros(layout.series, layout.width) if initial is None else initial.contiguous()
    last = torch.empty(layout.series, layout.width, dtype=torch.float32, device=x.device)
    layout.close_segments(x, new, keep, reverse=False)
    triton_kernels.scan[layout.grid](
        series(x), series(keep if new is None else new), series(keep), first, layout.ends, layout.shrinks, series(y),
        last, *layout.sizes(), **layout.constants(new is not None)
    )  # fmt: skip
    return y, last.view(*x.shape[:2], layout.width)


def backward(
    grad: Tensor, x: Tensor, y: Tensor, new: Tensor | None, keep: Tensor, initial: Tensor | None, final: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(dx, pulls (B, H, T), the total of the first step (B, H, K)); `final` is the gradient of the last state.

    `total_t = grad_t + keep_{t+1} total_{t+1}`; pulls are `total_t . y_{t-1}`, or `total_t . (x_t - y_{t-1})` where
    `new` is given.
    """
    grad, x = dense(grad), dense(x)
    layout, dx = _Layout(grad, backward=True), interleaved(x, x.shape[3])
    zeros = x.new_zeros(layout.series, layout.width)
    enters = zeros if final is None else final.contiguous()
    first = zeros if initial is None else initial.contiguous()
    pulls = torch.empty(x.shape[:3], dtype=torch.float32, device=x.device)
    last = torch.empty(layout.series, layout.width, dtype=torch.float32, device=x.device)
    layout.close_segments(grad, None, keep, reverse=True)
    triton_kernels.scan_backward[layout.grid](
        series(grad), series(x), series(y), series(keep if new is None else new), series(keep), enters, first,
        layout.ends, layout.shrinks, series(dx), pulls, last, *layout.sizes(), **layout.constants(new is not None)
    )  # fmt: skip
    return dx, pulls, last.view(*x.shape[:2], layout.width)
