"""The arguments of one kernel regression, checked once and handed to whichever implementation runs."""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from tessera.errors import expect
from tessera.kernels.base import Kernel
from tessera.ops.kernel_regression.window import Window, visible_pairs


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

    def __post_init__(self) -> None:
        q, k, v = self.query, self.key, self.value
        fits = q.dim() == k.dim() == v.dim() == 4 and q.shape[-1] == k.shape[-1] and k.shape[:3] == v.shape[:3]
        if not fits or q.shape[:2] != k.shape[:2]:
            rule = "have shapes (B, H, T, K), (B, H, N, K) and (B, H, N, V)"
            expect(False, "kernel_regression", "query, key and value", rule, [tuple(t.shape) for t in (q, k, v)])
        if (self.query_documents is None) != (self.pair_documents is None):
            expect(False, "kernel_regression", "query_documents and pair_documents", "be given together", "only one")
        expect(0.0 <= self.dropout < 1.0, "kernel_regression", "dropout", "lie in [0, 1)", self.dropout)

    def trimmed(self) -> Self:
        """The same call over the pairs that the window leaves to any query, without it where it hides none of them."""
        window, steps, pairs = self.window, self.query.shape[2], self.key.shape[2]
        if window is None:
            return self
        start = 0 if window.span is None else min(pairs, max(0, self.query_offset - window.span + 1))
        youngest = window.delay if isinstance(window.delay, int) else 1
        stop = max(start, min(pairs, self.query_offset + steps - youngest))
        offset, kept = self.query_offset - start, slice(start, stop)
        # The first query sees the newest pair, the last one the oldest.
        newest = isinstance(window.delay, int) and offset - window.delay >= stop - start - 1
        hides_nothing = newest and (window.span is None or offset + steps - 1 < window.span)
        if stop - start == pairs and not hides_nothing:
            return self
        documents = None if self.pair_documents is None else self.pair_documents[:, kept]
        return replace(
            self,
            key=self.key[:, :, kept],
            value=self.value[:, :, kept],
            window=None if hides_nothing else window,
            query_offset=offset,
            pair_documents=documents,
        )

    def visible(self) -> Tensor | None:
        """The dense mask, broadcastable to (B, H, T, N); None when every query sees every pair."""
        return visible_pairs(
            self.window,
            self.query.shape[2],
            self.key.shape[2],
            self.query_offset,
            self.query_documents,
            self.pair_documents,
            self.query.device,
        )

    def largest_slope(self) -> float:
        """The sharpest kernel of the call."""
        return float(torch.as_tensor(self.slope).detach().max())

    def per_query(self, scale: Tensor) -> Tensor:
        """`scale` (slope or intercept) with a last dimension of one, to multiply (B, H, T, ...) tensors."""
        return scale.to(self.query.dtype).unsqueeze(-1) if torch.is_tensor(scale) else scale
