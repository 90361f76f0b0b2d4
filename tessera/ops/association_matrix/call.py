"""The arguments of a reading and of a writing, checked once and handed to whichever implementation runs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tessera.base.errors import expect

UPDATE_ORDERS = ("parallel", "sequential")


@dataclass(frozen=True)
class ReadCall:
    """Arguments of `read_association`; see there."""

    matrix: Tensor
    normaliser: Tensor
    query: Tensor
    eps: float

    def __post_init__(self) -> None:
        _expect_memory("read_association", self.matrix, self.normaliser, self.query)


@dataclass(frozen=True)
class WriteCall:
    """Arguments of `write_association`; see there."""

    matrix: Tensor
    normaliser: Tensor
    key: Tensor
    value: Tensor
    strength: Tensor
    empty: Tensor
    correction: bool
    order: str
    eps: float
    gate_normaliser: bool = False

    def __post_init__(self) -> None:
        where = "write_association"
        _expect_memory(where, self.matrix, self.normaliser, self.key)
        pairs, width = self.key.shape[:2], self.matrix.shape[-1]
        expect(self.value.shape == (*pairs, width), where, "value", f"be {(*pairs, width)}", tuple(self.value.shape))
        expect(self.strength.shape == pairs, where, "strength", f"be {tuple(pairs)}", tuple(self.strength.shape))
        row = self.empty.shape == pairs[:1] and self.empty.dtype == torch.bool
        got = f"{self.empty.dtype} {tuple(self.empty.shape)}"
        expect(row, where, "empty", f"be booleans ({pairs[0]},)", got)
        expect(self.order in UPDATE_ORDERS, where, "order", f"be one of {', '.join(UPDATE_ORDERS)}", repr(self.order))


def _expect_memory(where: str, matrix: Tensor, normaliser: Tensor, features: Tensor) -> None:
    shapes = f"matrix {tuple(matrix.shape)}, normaliser {tuple(normaliser.shape)}, features {tuple(features.shape)}"
    expect(matrix.dim() == 3 and features.dim() == 3, where, "matrix and features", "be (B, P, V), (B, T, P)", shapes)
    agree = normaliser.shape == matrix.shape[:2] == (features.shape[0], features.shape[2])
    expect(agree, where, "matrix, normaliser and features", "agree in B and P", shapes)
