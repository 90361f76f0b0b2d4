"""The arguments of one gated average, checked once and handed to whichever implementation runs."""

from dataclasses import dataclass

from torch import Tensor

from tessera.ops.gated_average.state import GatedAverageState
from tessera.ops.linear_recurrence.call import expect_shape


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
