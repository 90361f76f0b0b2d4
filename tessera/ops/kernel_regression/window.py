"""Which stored pairs a query sees."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tessera.base.devices import is_readable
from tessera.base.errors import expect
from tessera.base.shapes import Bool, Int

LOOKS_AHEAD = "(a pair's value looks one step ahead)"


@dataclass(frozen=True)
class Window:
    """At step T a memory sees the pairs i with `T - span < i <= T - delay`.

    Contextual memory: delay 1, no span (the pair (k_T, v_T) exists only once x_{T+1} is known). Short-term memory:
    delay 1, span h. Long-term memory: delay m, no span. `delay` may be a tensor (B,), one delay per sequence.
    Raises `TesseraError`: a delay below 1, a span that holds no pair, or either of another type.
    """

    delay: int | Int[Tensor, " B"] = 1
    span: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.delay, Tensor):
            self._check_delays(self.delay)
        else:
            valid = type(self.delay) is int and self.delay >= 1
            expect(valid, "Window", "delay", f"be an integer of at least 1 {LOOKS_AHEAD}", self.delay)
        if self.span is not None:
            least = self.delay if isinstance(self.delay, int) else 1
            valid = type(self.span) is int and self.span > least
            expect(valid, "Window", "span", f"be an integer that exceeds delay ({least})", self.span)

    @staticmethod
    def _check_delays(delay: Tensor) -> None:
        described = f"{delay.dtype} {tuple(delay.shape)}"
        integers = not delay.is_floating_point() and not delay.is_complex() and delay.dtype != torch.bool
        expect(integers and delay.dim() == 1, "Window", "delay", "be integers (B,), one per sequence", described)
        # Looking at the numbers would cost a GPU a wait, and a compiled step a break in its graph.
        if is_readable(delay) and delay.numel():
            least = int(delay.min())
            expect(least >= 1, "Window", "every delay", f"be at least 1 {LOOKS_AHEAD}", least)

    def num_pairs(self, positions: Int[Tensor, "... T"]) -> Int[Tensor, "... T"]:
        """How many pairs are seen at `positions` (B, T) or (T,), counted from 1 within their document."""
        delay = self.delay if isinstance(self.delay, int) else self.delay.to(positions.device)[:, None]
        newest = positions if self.span is None else positions.clamp(max=self.span)
        return (newest - delay).clamp(min=0)

    def visible(
        self, query_positions: Int[Tensor, " T"], pair_positions: Int[Tensor, " N"]
    ) -> Bool[Tensor, "*sequence T N"]:
        """Bool (T, N), or (B, 1, T, N) when the delay is per sequence, for integer positions (T,) and (N,)."""
        age = query_positions[:, None] - pair_positions[None, :]
        delay = self.delay.to(age.device).view(-1, 1, 1, 1) if isinstance(self.delay, Tensor) else self.delay
        visible = age >= delay
        return visible if self.span is None else visible & (age < self.span)
