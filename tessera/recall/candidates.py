"""The pairs that a search has read and that may have weight."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

FEW_ROWS = 8  # a pass for each of them takes half of the time of sorting


@dataclass
class Candidates:
    """What was read and may have weight: scores (R, s), -inf where a row has fewer than s, and places (R, s)."""

    scores: Tensor
    places: Tensor

    @classmethod
    def of(cls, rows: Tensor, scores: Tensor, places: Tensor, num_rows: int) -> Self:
        """Of single scores of the given rows, which ascend."""
        if num_rows == 1:
            return cls(scores.unsqueeze(0), places.unsqueeze(0))
        if num_rows == 0:
            return cls(scores.view(0, 0), places.view(0, 0))
        counts = torch.bincount(rows, minlength=num_rows).tolist()
        return cls(
            pad_sequence(scores.split(counts), batch_first=True, padding_value=-torch.inf),
            pad_sequence(places.split(counts), batch_first=True),
        )

    def joined(self, other: Self) -> Self:
        """These and those of `other`, row by row."""
        return type(self)(torch.cat([self.scores, other.scores], 1), torch.cat([self.places, other.places], 1))

    def above(self, floor: Tensor) -> Self:
        """What scores above `floor` (R,), or NaN, in the order of places. The floor only rises as more is read."""
        rows, columns = (~(self.scores <= floor.unsqueeze(1))).nonzero(as_tuple=True)
        return self.of(rows, self.scores[rows, columns], self.places[rows, columns], len(floor))

    def in_order(self) -> Self:
        """The same, places ascending: of ties the most recent is last, as in a scan."""
        known = self.places.masked_fill(self.scores == -torch.inf, torch.iinfo(torch.long).max)
        order = torch.from_numpy(known.cpu().numpy().argsort(1)).to(known.device)  # a third of PyTorch's time
        return type(self)(self.scores.gather(1, order), self.places.gather(1, order))


def stable_order(rows: Tensor, num_rows: int) -> Tensor:
    """`rows.argsort(stable=True)` of numbers below `num_rows`."""
    if num_rows > FEW_ROWS:
        return rows.argsort(stable=True)
    return torch.cat([(rows == row).nonzero().squeeze(1) for row in range(num_rows)])
