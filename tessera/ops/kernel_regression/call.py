"""The arguments of one kernel regression, checked once and handed to whichever implementation runs."""

from dataclasses import dataclass

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

    def sees_everything(self) -> bool:
        """Whether every query sees every pair: as in decoding, where the one query stands behind all pairs."""
        if self.pair_documents is not None or self.window is None:
            return self.pair_documents is None
        plain = self.window.span is None and isinstance(self.window.delay, int)
        return plain and self.query_offset - self.window.delay >= self.key.shape[2] - 1

    def visible(self) -> Tensor | None:
        """The dense mask, broadcastable to (B, H, T, N); None when every query sees every pair."""
        if self.sees_everything():
            return None
        return visible_pairs(
            self.window,
            self.query.shape[2],
            self.key.shape[2],
            self.query_offset,
            self.query_documents,
            self.pair_documents,
            self.query.device,
        )

    def sees_past_only(self) -> bool:
        """Whether the window is the contextual one over aligned queries and pairs, and nothing else masks."""
        contextual = self.window is not None and self.window.span is None and isinstance(self.window.delay, int)
        return contextual and self.window.delay == 1 and self.pair_documents is None

    def largest_slope(self) -> float:
        """The sharpest kernel of the call."""
        return float(torch.as_tensor(self.slope).detach().max())

    def per_query(self, scale: Tensor) -> Tensor:
        """`scale` (slope or intercept) with a last dimension of one, to multiply (B, H, T, ...) tensors."""
        return scale.to(self.query.dtype).unsqueeze(-1) if torch.is_tensor(scale) else scale
