"""One pair, none, equal keys, huge and tiny scores, half precision, ties, empty windows."""

import pytest
import torch

from tessera.kernels import (
    NearestNeighbours,
    NormalizedReLU,
    entmax,
    knn_softmax,
    knn_uniform,
    normalized_relu,
    relumax,
    sparsemax,
)
from tessera.testing.kernels import example
from tests.kernels.contract import all_kernels, identifier

KERNEL = pytest.mark.parametrize("kernel", all_kernels(), ids=identifier)
FUNCTIONS = {
    "entmax": lambda scores, dim=-1: entmax(scores, 1.5, dim),
    "softmax": lambda scores, dim=-1: entmax(scores, 1, dim),
    "sparsemax": sparsemax,
    "relumax": lambda scores, dim=-1: relumax(scores, dim=dim),
    "normalized_relu": normalized_relu,
    "knn_softmax": lambda scores, dim=-1: knn_softmax(scores, 3, dim),
    "knn_uniform": lambda scores, dim=-1: knn_uniform(scores, 3, dim),
}
FUNCTION = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())


@KERNEL
@pytest.mark.parametrize("level", [0.7, -1e4, 1e4, 1e-8])
def test_equal_scores_share_the_weight(kernel, level):
    weights = kernel.weights(torch.full((2, 100), level, dtype=torch.float64))
    neighbours = min(kernel.k, 100) if isinstance(kernel, NearestNeighbours) else 100
    expected = torch.zeros(2, 100, dtype=torch.float64)
    expected[:, 100 - neighbours :] = 1 / neighbours
    torch.testing.assert_close(weights, expected, rtol=1e-9, atol=0)


@KERNEL
@pytest.mark.parametrize("scale", [1e4, 1e-8])
def test_huge_and_tiny_scores_in_float32(kernel, scale):
    scores = (scale * torch.randn(8, 200)).requires_grad_()
    weights = kernel.weights(scores)
    weights.backward(torch.randn(8, 200))
    exact = kernel.weights(scores.detach().double())
    # order * 6e-8 is one rounding of the threshold in u^r; normalised responses lose as little.
    torch.testing.assert_close(weights.double(), exact, rtol=0, atol=5e-6)
    assert bool(scores.grad.isfinite().all())


@KERNEL
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(kernel, dtype):
    scores, visible = example()
    scores = scores.to(dtype).requires_grad_()
    weights = kernel.weights(scores, visible)
    weights.backward(torch.ones_like(weights))
    assert weights.dtype == scores.grad.dtype == dtype
    exact = kernel.weights(scores.detach().double(), visible)
    # Half of one spacing at the top of the binade: the result is rounded once.
    spacing = torch.finfo(dtype).eps
    torch.testing.assert_close(weights.double(), exact, rtol=spacing, atol=spacing * 1e-2)


@FUNCTION
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_functions_take_any_dtype_and_dimension_and_absent_entries(function, dtype):
    scores = torch.randn(4, 5, 3, dtype=torch.float64).to(dtype)
    scores[1, 2:] = -torch.inf
    scores[2] = -torch.inf
    along_middle = function(scores, dim=1)
    assert along_middle.dtype == dtype
    assert torch.equal(along_middle, function(scores.transpose(1, 2)).transpose(1, 2))
    assert bool((along_middle[1, 2:] == 0).all())
    assert bool((along_middle[2] == 0).all())
    total = along_middle.double().sum(1)
    torch.testing.assert_close(total[[0, 1, 3]], torch.ones(3, 3).double(), rtol=0, atol=4 * torch.finfo(dtype).eps)


@FUNCTION
def test_a_nan_makes_its_row_nan(function):
    scores = torch.randn(3, 7, 2)
    expected = function(scores, dim=1)
    scores[1, 4, 0] = torch.nan
    weights = function(scores, dim=1)
    assert bool(weights[1, :, 0].isnan().all())
    assert torch.equal(weights[[0, 2]], expected[[0, 2]])
    assert torch.equal(weights[1, :, 1], expected[1, :, 1])
    scores[1, 0, 0] = -torch.inf  # an absent pair beside it
    assert bool(function(scores, dim=1)[1, 1:, 0].isnan().all())


@pytest.mark.parametrize("base", ["gaussian", "uniform"])
def test_ties_at_the_last_place_go_to_the_most_recent(base):
    scores = torch.tensor([[1.0, 0.0, 2.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 9.0], [3.0, 3.0, 3.0, 3.0, 3.0]])
    kept = NearestNeighbours(base, 3).weights(scores) > 0
    assert kept.tolist() == [
        [True, False, True, False, True],
        [False, False, True, True, True],
        [False, False, True, True, True],
    ]


def test_fewer_pairs_than_k_are_all_neighbours():
    scores = torch.randn(3, 6)
    visible = torch.tensor([True, False, True, False, False, True])
    assert torch.equal(knn_uniform(scores, 9), torch.full((3, 6), 1 / 6))
    uniform = NearestNeighbours("uniform", 4).weights(scores, visible)
    torch.testing.assert_close(uniform, visible.expand(3, 6) / 3)
    gaussian = NearestNeighbours("gaussian", 4).weights(scores, visible)
    torch.testing.assert_close(gaussian, torch.softmax(scores.masked_fill(~visible, -torch.inf), -1))


def test_normalized_relu_without_support_is_uniform_over_visible_pairs():
    scores = torch.tensor([[-1.0, -2.0, -0.5, 3.0], [-1.0, 0.0, -0.5, -3.0]], requires_grad=True)
    visible = torch.tensor([[True, False, True, False], [True, True, True, True]])
    kernel = next(kernel for kernel in all_kernels() if kernel.name == "normalized_relu")
    weights = kernel.weights(scores, visible)
    assert weights.tolist() == [[0.5, 0.0, 0.5, 0.0], [0.25] * 4]
    weights.backward(torch.randn(2, 4))
    assert torch.equal(scores.grad, torch.zeros(2, 4))


def test_a_floor_under_the_sum_of_normalized_relu():
    scores = torch.tensor([[0.5, 1.0, -1.0], [0.25, -2.0, 0.5], [-1.0, -2.0, 0.0]], dtype=torch.float64)
    kernel = NormalizedReLU(min_total=1.2)
    expected = torch.tensor([[1 / 3, 2 / 3, 0], [0.25 / 1.2, 0, 0.5 / 1.2], [1 / 3] * 3], dtype=torch.float64)
    torch.testing.assert_close(kernel.weights(scores), expected)
    # The last row is the uniform fall-back, without gradient; zero lies at its kink.
    assert torch.autograd.gradcheck(kernel.weights, scores[:2].clone().requires_grad_())


def test_scores_at_the_threshold_are_outside():
    # sparsemax of (1, 0, -3): tau = 0 exactly; the second entry has neither weight nor gradient.
    scores = torch.tensor([1.0, 0.0, -3.0], dtype=torch.float64, requires_grad=True)
    weights = sparsemax(scores)
    (grad,) = torch.autograd.grad(weights, scores, torch.tensor([1.0, 5.0, 2.0], dtype=torch.float64))
    assert weights.tolist() == [1.0, 0.0, 0.0]
    assert grad.tolist() == [0.0, 0.0, 0.0]


def test_a_large_row_keeps_float32_accuracy():
    row = torch.randn(3, 20_000)
    for alpha in (4 / 3, 1.5, 2.0):
        torch.testing.assert_close(entmax(row, alpha).double(), entmax(row.double(), alpha), rtol=0, atol=1e-6)
