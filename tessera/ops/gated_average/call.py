"""One call of the gated average, and the average so far."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from tessera.base.shapes import Bool, Float
from tessera.base.state import State
from tessera.ops.linear_recurrence.call import expect_shape


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

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """See `State.map`. No log-weight is rounded to half precision, which tells 64 from 64.5 and nothing between."""
        mapped = super().map(function)
        is_rounded = mapped.log_weight.dtype in (torch.float16, torch.bfloat16)
        return replace(mapped, log_weight=self.log_weight.to(mapped.log_weight.device)) if is_rounded else mapped

    def kept(self, keep: Bool[Tensor, " B"]) -> Self:
        """Emptied in the sequences where `keep` (B,) does not hold: those begin a new document."""
        average = torch.where(keep[:, None, None], self.average, 0.0)
        return type(self)(average, torch.where(keep[:, None], self.log_weight, -torch.inf))


@dataclass(frozen=True)
class GatedAverageCall:
    """Arguments of `gated_average`; see there. `log_decay` is -inf where a document begins."""

    x: Tensor
    log_gate: Tensor
    log_decay: Tensor
    state: GatedAverageState

    def __post_init__(self) -> None:
        for name, scalar in (("log_gate", self.log_gate), ("log_decay", self.log_decay)):
            expect_shape("gated_average", name, scalar, tuple(self.x.shape[:3]))
        batch, heads, _, width = self.x.shape
        expect_shape("gated_average", "initial_state's average", self.state.average, (batch, heads, width))
