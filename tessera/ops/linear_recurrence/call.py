"""The arguments of one linear recurrence, checked once and handed to whichever implementation runs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tessera.base.errors import expect
from tessera.base.shapes import Bool, Float, Int


@dataclass(frozen=True)
class RecurrenceCall:
    """Arguments of `linear_recurrence`; see there."""

    x: Tensor
    keep: Tensor
    new: Tensor | None = None
    initial: Tensor | None = None

    def __post_init__(self) -> None:
        where = "linear_recurrence"
        expect_sequence(where, self.x)
        batch, heads, steps, width = self.x.shape
        expect_shape(where, "keep", self.keep, (batch, heads, steps), (1, heads, steps))
        if self.new is not None:
            expect_shape(where, "new", self.new, (batch, heads, steps))
        if self.initial is not None:
            expect_shape(where, "initial", self.initial, (batch, heads, width))

    @property
    def state_dtype(self) -> torch.dtype:
        """The dtype in which sums are carried."""
        return self.x.dtype if self.initial is None else self.initial.dtype


def document_starts(
    where: str, x: Float[Tensor, "B H T K"], documents: Int[Tensor, "B T"] | None
) -> Bool[Tensor, "B T"] | None:
    """Where a new document begins within `documents` (B, T) of x (B, H, T, K): booleans, False at the first step."""
    if documents is None:
        return None
    expect_shape(where, "documents", documents, (x.shape[0], x.shape[2]))
    starts = torch.zeros_like(documents, dtype=torch.bool)
    starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return starts


def expect_sequence(where: str, x: Tensor) -> None:
    """Refuse an x that is not (B, H, T, K) with at least one step."""
    if x.dim() != 4 or x.shape[2] == 0:
        expect(False, where, "x", "be (B, H, T, K) with T >= 1", tuple(x.shape))


def expect_shape(where: str, name: str, tensor: Tensor, *shapes: tuple[int, ...]) -> None:
    """Refuse a tensor of none of these shapes."""
    for shape in shapes:
        if tensor.shape == shape:
            return
    allowed = " or ".join(str(shape) for shape in dict.fromkeys(shapes))
    expect(False, where, name, f"have shape {allowed}", tuple(tensor.shape))
