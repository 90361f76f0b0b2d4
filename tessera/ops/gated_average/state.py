"""What a gated average carries from one call to the next."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from tessera.base.shapes import Bool, Float
from tessera.base.state import State


@dataclass(frozen=True)
class GatedAverageState(State):
    """The average so far and how much weight it stands for: `kbar_T = exp(log_weight) * average`.

    `log_weight` is float64 whatever the dtype of the average: it can be large while its differences decide.
    """

    average: Float[Tensor, "B H K"]
    log_weight: Float[Tensor, "B H"]  # float64; -inf: nothing has been averaged yet

    @classmethod
    def empty(cls, x: Float[Tensor, "B H T K"]) -> Self:
        """The state before the first step of `x` (B, H, T, K)."""
        precise = torch.promote_types(x.dtype, torch.float32)
        log_weight = torch.full(x.shape[:2], -torch.inf, dtype=torch.float64, device=x.device)
        return cls(x.new_zeros(x.shape[0], x.shape[1], x.shape[3], dtype=precise), log_weight)

    def kept(self, keep: Bool[Tensor, " B"]) -> Self:
        """Emptied in the sequences where `keep` (B,) does not hold: those begin a new document."""
        average = torch.where(keep[:, None, None], self.average, 0.0)
        return type(self)(average, torch.where(keep[:, None], self.log_weight, -torch.inf))
