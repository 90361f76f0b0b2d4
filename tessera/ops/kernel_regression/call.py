"""The arguments of one kernel regression: which pairs a query sees, and a call, checked once (`check`) and handed to
whichever implementation runs."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from tessera.base.devices import is_exporting, is_readable
from tessera.base.errors import expect
from tessera.base.shapes import Bool, Int
from tessera.kernels.base import Kernel
from tessera.kernels.rows import RowKernel

WHERE = "kernel_regression"
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


@dataclass(frozen=True)
class Call:
    """Arguments of `kernel_regression`; see there. `slope` and `intercept` broadcast to (B, H, T)."""

    query: Tensor
    key: Tensor
    value: Tensor
    kernel: Kernel
    slope: Tensor
    intercept: Tensor | None = None
    window: Window | None = None
    query_offset: int = 0
    query_documents: Tensor | None = None
    pair_documents: Tensor | None = None
    dropout: float = 0.0

    def check(self) -> None:
        """Raise `TesseraError` for shapes, dtypes and settings that do not agree."""
        self._check_tensors()
        batch, heads, steps, _ = self.query.shape
        for name, scale in (("slope", self.slope), ("intercept", self.intercept)):
            if scale is not None and not _broadcasts(scale.shape, (batch, heads, steps)):
                needed = f"broadcast to (B, H, T) = {(batch, heads, steps)}"
                expect(False, WHERE, name, needed, tuple(scale.shape))
        if isinstance(self.kernel, RowKernel):
            self.kernel.expect_rows(WHERE, (batch, heads, steps))
        self._check_documents()
        self._check_window()
        if not 0.0 <= self.dropout < 1.0:
            expect(False, WHERE, "dropout", "lie in [0, 1)", self.dropout)

    def _check_tensors(self) -> None:
        q, k, v = tensors = self.query, self.key, self.value
        agree = q.dim() == k.dim() == v.dim() == 4 and q.shape[-1] == k.shape[-1] and k.shape[:3] == v.shape[:3]
        if not agree or q.shape[1] != k.shape[1] or k.shape[0] not in (1, q.shape[0]):
            expected = "(B, H, T, K), (B or 1, H, N, K) and (B or 1, H, N, V)"
            shapes = [tuple(tensor.shape) for tensor in tensors]
            expect(False, WHERE, "query, key and value", f"have shapes {expected}", shapes)
        if not (q.dtype == k.dtype == v.dtype and q.is_floating_point()):
            dtypes = ", ".join(str(tensor.dtype) for tensor in tensors)
            expect(False, WHERE, "query, key and value", "have one floating-point dtype", dtypes)
        if not q.device == k.device == v.device:
            devices = ", ".join(str(tensor.device) for tensor in tensors)
            expect(False, WHERE, "query, key and value", "be on one device", devices)

    def _check_window(self) -> None:
        if self.window is not None and not isinstance(self.window, Window):
            expect(False, WHERE, "window", "be a Window or None", repr(self.window))
        delay = 1 if self.window is None else self.window.delay
        if isinstance(delay, Tensor) and delay.shape != self.query.shape[:1]:
            needed = f"be one integer or one per sequence ({self.query.shape[0]},)"
            expect(False, WHERE, "the window's delay", needed, tuple(delay.shape))
        if self.has_open_end:
            return
        is_integer = isinstance(self.query_offset, int | torch.SymInt) and not isinstance(self.query_offset, bool)
        if not is_integer or (isinstance(self.query_offset, int) and self.query_offset < 0):
            expect(False, WHERE, "query_offset", "be an integer of at least 0", self.query_offset)

    def _check_documents(self) -> None:
        if (self.query_documents is None) != (self.pair_documents is None):
            expect(False, WHERE, "query_documents and pair_documents", "be given together", "only one")
        if self.query_documents is None or self.pair_documents is None:
            return
        for name, documents, like in (
            ("query_documents", self.query_documents, self.query),
            ("pair_documents", self.pair_documents, self.key),
        ):
            shape = (self.query.shape[0], like.shape[2])
            if tuple(documents.shape) != shape or documents.is_floating_point():
                expect(False, WHERE, name, f"be integers {shape}", f"{documents.dtype} {tuple(documents.shape)}")

    @property
    def has_open_end(self) -> bool:
        """Whether the one query's position is a tensor (1,), as in decoding programs: pairs from there on are room."""
        offset: object = self.query_offset
        return isinstance(offset, Tensor)

    def visibility(self) -> tuple[int, int | None, int | None, Tensor | None, Tensor | None, Tensor | None]:
        """What registered operators take: query offset, the window's delay, span and delays (B,), and the documents."""
        delay = None if self.window is None else self.window.delay
        one, each = (None, delay) if isinstance(delay, Tensor) else (delay, None)
        span = None if self.window is None else self.window.span
        return self.query_offset, one, span, each, self.query_documents, self.pair_documents

    def trimmed(self) -> Self:
        """The same call over the pairs that the window leaves to any query, without it where it hides none of them."""
        window, steps, pairs = self.window, self.query.shape[2], self.key.shape[2]
        if window is None or is_exporting() or self.has_open_end:  # an exported program takes any length
            return self
        start = 0 if window.span is None else min(pairs, max(0, self.query_offset - window.span + 1))
        youngest = window.delay if isinstance(window.delay, int) else 1
        stop = max(start, min(pairs, self.query_offset + steps - youngest))
        offset, kept = self.query_offset - start, slice(start, stop)
        # The first query sees the newest pair, the last one the oldest.
        newest = isinstance(window.delay, int) and offset - window.delay >= stop - start - 1
        hides_nothing = newest and (window.span is None or offset + steps - 1 < window.span)
        key, value, documents = self.key, self.value, self.pair_documents
        if stop - start < pairs:
            key, value = key[:, :, kept], value[:, :, kept]
            documents = None if documents is None else documents[:, kept]
        elif not hides_nothing:
            return self
        window, rest = None if hides_nothing else window, (self.query_documents, documents, self.dropout)
        return type(self)(self.query, key, value, self.kernel, self.slope, self.intercept, window, offset, *rest)

    def visible(self) -> Tensor | None:
        """The dense mask, broadcastable to (B, H, T, N); None when every query sees every pair."""
        visible = None
        if self.window is not None:
            queries, pairs = (torch.arange(x.shape[2], device=x.device) for x in (self.query, self.key))
            visible = self.window.visible(queries + self.query_offset, pairs)
        if self.query_documents is None or self.pair_documents is None:
            return visible
        same = self.query_documents[:, None, :, None] == self.pair_documents[:, None, None, :]
        same = same & (self.pair_documents >= 0)[:, None, None, :]
        return same if visible is None else visible & same

    def zeros(self) -> Tensor:
        """The answers of a call without pairs: zeros that still depend on its tensors, so that all get gradients."""
        return ((self.query * self.per_query(self.slope)) @ self.key[:, :, :0].mT) @ self.value[:, :, :0]

    def largest_slope(self) -> float:
        """The sharpest kernel of the call."""
        return float(self.slope.detach().abs().max())

    def per_query(self, scale: Tensor) -> Tensor:
        """`scale` (slope or intercept) with a last dimension of one, to multiply (B, H, T, ...) tensors."""
        return scale.to(self.query).unsqueeze(-1) if torch.is_tensor(scale) else scale


def _broadcasts(shape: torch.Size, target: tuple[int, ...]) -> bool:
    """Whether a tensor of `shape` broadcasts to `target` without enlarging it."""
    if len(shape) > len(target):
        return False
    for size, full in zip(shape, target[len(target) - len(shape) :]):  # noqa: SIM110 (runs at every decoded token)
        if size not in (1, full):
            return False
    return True
