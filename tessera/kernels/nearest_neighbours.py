"""k nearest neighbours, weighted by the Gaussian kernel or equally."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from tessera.base.devices import has_values
from tessera.base.errors import expect
from tessera.base.shapes import Float, Int
from tessera.kernels.base import KERNELS, PerRow, Rows, Statistics, Visible
from tessera.kernels.rows import RowKernel, Workspace, row_maximum

BASES = ("gaussian", "uniform")


@KERNELS.register("knn")
@dataclass(frozen=True)
class NearestNeighbours(RowKernel):
    """`w_i ∝ exp(beta s_i)` (base gaussian) or 1 (base uniform) on the k largest s_i, 0 elsewhere.

    Sparse Attention as Compact Kernel Regression, equations 7, 18 and 19. Exactly k pairs are kept: of pairs that tie
    at the k-th place the most recent, those of largest index, come first. Scores that differ by rounding alone do not
    tie: which of such pairs is kept, and the answer with it, may differ between a whole pass and step by step. Fewer
    than k visible pairs: all of them. The choice of neighbours has no gradient, so the uniform base has none at all.
    The row statistics are the neighbours' indices and weights, k each.
    """

    name: ClassVar[str] = "knn"
    base: str = "gaussian"
    k: int = 16

    def __post_init__(self) -> None:
        where = "kernel 'knn'"
        expect(self.base in BASES, where, "base", f"be one of {', '.join(BASES)}", repr(self.base))
        expect(isinstance(self.k, int) and self.k >= 1, where, "k", "be an integer of at least 1", self.k)

    def forward(self, scaled: Rows, workspace: Workspace) -> tuple[Rows, Statistics]:
        """The base's weights on the k largest scores; statistics: their indices and weights."""
        values, indices = nearest(scaled, self.k)
        if self.base == "gaussian":
            values.sub_(row_maximum(values)).exp_()
        else:
            values = torch.where(values.isnan(), values, (values > -torch.inf).to(scaled.dtype))
        values.div_(values.sum(-1, keepdim=True).clamp_min_(torch.finfo(values.dtype).tiny))
        return _scattered(indices, values, scaled), (indices, values)

    def subset_floor(self, scores: Rows, visible: Visible = None) -> PerRow:
        """Just below the k-th largest of these scores, -inf while there are fewer: others can only raise it."""
        masked = self.masked(scores, visible)
        if masked.shape[-1] < self.k:
            return masked.new_full(masked.shape[:-1], -torch.inf)
        kth = masked.topk(self.k, dim=-1)[0][..., -1]
        return torch.nextafter(kth, torch.full_like(kth, -torch.inf))

    def backward(self, scaled: Rows, statistics: Statistics, grad: Rows, workspace: Workspace) -> tuple[Rows, Rows]:
        """The base's gradient among the k neighbours; 0 for the uniform base."""
        indices, values = statistics
        weights = _scattered(indices, values, scaled)
        if self.base == "uniform":
            return weights, grad.zero_()
        near = grad.gather(-1, indices)
        near = (near - (near * values).sum(-1, keepdim=True)) * values
        return weights, _scattered(indices, near, grad)

    def bandwidth(self, scores: Rows, inverse_bandwidth: Float[Tensor, "*#rows"], visible: Visible = None) -> PerRow:
        """`sqrt(2 - 2 s_(k))`: the distance of the farthest neighbour (equation 7's delta_max)."""
        masked = self.masked(scores, visible)
        values = nearest(masked, self.k)[0]
        last = values.masked_fill(values == -torch.inf, torch.inf).amin(-1)
        return self.where_visible((2 - 2 * last / inverse_bandwidth).clamp_min(0).sqrt(), masked)


def _scattered(indices: Tensor, values: Tensor, out: Tensor) -> Tensor:
    """`values` at `indices` of `out`, 0 elsewhere; NaN in a row of a NaN, which `nearest` counts as the largest."""
    return out.copy_(0 * values.sum(-1, keepdim=True)).scatter_add_(-1, indices, values)


def nearest(scores: Rows, k: int) -> tuple[Float[Tensor, "*rows k"], Int[Tensor, "*rows k"]]:
    """The k largest scores of each row and their indices; of ties the largest index first.

    Of fewer than k scores: all of them. In a compiled or exported program, entries of -inf fill up to k.
    """
    num_pairs = scores.shape[-1]
    if torch.compiler.is_compiling():  # no number of pairs and no tie may decide what is computed
        rows = pad(scores, (0, k), value=-torch.inf).flip(-1).sort(dim=-1, descending=True, stable=True)
        places = num_pairs + k - 1 - rows.indices[..., :k]
        return rows.values[..., :k], places.clamp(max=num_pairs - 1)
    values, indices = torch.topk(scores, min(k + 1, num_pairs), dim=-1)
    if num_pairs <= k:
        return values, indices
    last, next_best = values[..., k - 1], values[..., k]
    values, indices = values[..., :k], indices[..., :k]
    # topk takes any of the ties at the k-th place: rows in which some were left out are sorted.
    tied = (last == next_best) & (last > -torch.inf)
    if has_values(scores) and bool(tied.any()):
        rows = scores[tied].flip(-1).sort(dim=-1, descending=True, stable=True)
        values[tied] = rows.values[..., :k]
        indices[tied] = num_pairs - 1 - rows.indices[..., :k]
    return values, indices
