"""The pairs that a search has read and that may have weight."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

FEW_ROWS = 8  # a pass for each of them takes half of the time of sorting
FEW_PAIRS = 4096  # of a row: so much filling up costs less than another call of a kernel


@dataclass
class Candidates:
    """What was read and may have weight, row after row of `num_rows`: rows, scores and places (n,)."""

    rows: Tensor
    scores: Tensor
    places: Tensor
    num_rows: int

    @classmethod
    def above(cls, scores: Tensor, places: Tensor, floor: Tensor) -> Self:
        """Those of scores (R, s) of places (R, s) that are above `floor` (R,), or NaN."""
        rows, columns = (~(scores <= floor.unsqueeze(1))).nonzero(as_tuple=True)
        return cls(rows, scores[rows, columns], places[rows, columns], len(floor))

    def of_rows(self, is_kept: Tensor) -> Self:
        """Those of the rows that `is_kept` (R,) says."""
        return self._taken(is_kept[self.rows].nonzero().squeeze(1))

    def still_above(self, floor: Tensor) -> Self:
        """Those of these: the floor only rises as more is read."""
        kept = (~(self.scores <= floor[self.rows])).nonzero().squeeze(1)
        return self._taken(kept)

    def joined(self, other: Self) -> Self:
        """These and those of `other`, row by row."""
        pairs = ((self.rows, other.rows), (self.scores, other.scores), (self.places, other.places))
        rows, scores, places = map(torch.cat, pairs)
        both = type(self)(rows, scores, places, self.num_rows)
        own, others = (torch.bincount(x.rows, minlength=self.num_rows).cumsum(0) for x in (self, other))
        counted = torch.arange(len(both.rows), device=both.rows.device)
        first, then = counted[: len(self.rows)], counted[: len(other.rows)]
        before = torch.cat([others.new_zeros(1), others])  # of the other's, all of earlier rows
        order = torch.empty_like(counted)
        order[first + before[self.rows]] = first
        order[then + own[other.rows]] = then + len(first)
        return both._taken(order)

    def in_order(self) -> Self:
        """The same, places of a row ascending: of ties the most recent is last, as in a scan."""
        width = int(self.places.amax()) + 1 if len(self.places) else 1
        order = (self.rows * width + self.places).cpu().numpy().argsort()  # a third of PyTorch's time
        return self._taken(torch.from_numpy(order).to(self.places.device))

    def padded(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """By rows that have about as many: which rows (g,), their scores (g, s) filled up with -inf, where those stand
        that are not filled up (g, s), and as which of all candidates (m,)."""
        counts = torch.bincount(self.rows, minlength=self.num_rows)
        sizes = counts.clamp(min=FEW_PAIRS).double().log2().ceil()
        for size in sizes.unique().tolist():
            members = (sizes == size).nonzero().squeeze(1)
            entries = (sizes[self.rows] == size).nonzero().squeeze(1)
            own = counts[members]
            filled = torch.arange(int(own.amax()), device=own.device) < own.unsqueeze(1)
            scores = self.scores.new_full(filled.shape, -torch.inf).masked_scatter(filled, self.scores[entries])
            yield members, scores, filled, entries

    def _taken(self, which: Tensor) -> Self:
        rows, scores, places = (x.index_select(0, which) for x in (self.rows, self.scores, self.places))
        return type(self)(rows, scores, places, self.num_rows)


def stable_order(rows: Tensor, num_rows: int) -> Tensor:
    """`rows.argsort(stable=True)` of numbers below `num_rows`."""
    if num_rows > FEW_ROWS:
        return rows.argsort(stable=True)
    return torch.cat([(rows == row).nonzero().squeeze(1) for row in range(num_rows)])
