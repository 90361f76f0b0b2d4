"""What a state consists of."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tessera.base.state import State


@dataclass(frozen=True)
class Learned(State):
    model: Tensor | str
    count: int = 3


def test_a_part_may_be_called_model_and_a_fingerprint_is_none():
    weights = torch.ones(2)
    assert Learned(weights).parts() == {"model": weights, "count": 3}
    assert Learned("of which model").parts() == {"count": 3}
