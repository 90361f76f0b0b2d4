"""The shapes in the library's annotations are checked while the tests run, and cost nothing elsewhere."""

import pytest
import torch
from torch import Tensor

from tessera.base.errors import TesseraError
from tessera.base.shapes import Float, Int
from tessera.kernels import Gaussian
from tessera.memories.association import AssociationState
from tessera.ops.leaky_average import leaky_average
from tests.shape_checks import ShapeError, checked


def test_what_the_library_itself_lets_through_is_checked():
    """Unchecked, none of the last two is an error: a state that fits no memory, a mask that enlarges the scores."""
    with pytest.raises(TesseraError, match=r"leaky_average: documents must be a tensor of integers \(B, T\)"):
        leaky_average(torch.zeros(1, 3, 4, 5), torch.ones(3), documents=torch.zeros(1, 4))
    with pytest.raises(ShapeError, match=r"AssociationState.__init__: normaliser is not .*'B P'.*\[2, 4\]"):
        AssociationState(torch.zeros(2, 3, 5), torch.zeros(2, 4), torch.ones(2, dtype=torch.bool))
    with pytest.raises(ShapeError, match=r"Gaussian.weights: visible is not"):
        Gaussian().weights(torch.zeros(1, 3), torch.ones(2, 3, dtype=torch.bool))


def test_a_result_of_another_shape_than_annotated_is_found():
    @checked
    def transposed(x: Float[Tensor, "B T"], documents: Int[Tensor, "B T"] | None = None) -> Float[Tensor, "B T"]:
        return x.T

    assert transposed(torch.ones(2, 2)).shape == (2, 2)
    with pytest.raises(ShapeError, match="return is not"):
        transposed(torch.ones(2, 3))
    with pytest.raises(ShapeError, match="documents is not"):
        transposed(torch.ones(2, 2), documents=torch.ones(2, 2))


def test_an_error_of_the_library_comes_first():
    with pytest.raises(ValueError, match=r"leaky_average: decay must have shape \(3,\); got \(2,\)"):
        leaky_average(torch.zeros(1, 3, 4, 5), torch.ones(2))
