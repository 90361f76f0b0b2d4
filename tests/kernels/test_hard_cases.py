"""Equal keys, huge and tiny scores, ties, absent entries, NaN; bandwidths and support sizes that inspection shows."""

import pytest
import torch
from torch.nn.functional import normalize

from tessera.kernels import (
    Biweight,
    Epanechnikov,
    Gaussian,
    NearestNeighbours,
    NormalizedReLU,
    RectifiedPolynomial,
    ReLUmax,
    Triweight,
    entmax,
    knn_softmax,
    knn_uniform,
    normalized_relu,
    relumax,
    sparsemax,
)
from tests.covering import some
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


@pytest.mark.parametrize("kernel", [NormalizedReLU(), NormalizedReLU(min_total=1e37)], ids=identifier)
def test_scores_whose_sum_float32_does_not_hold(kernel):
    scores = (3e38 * torch.rand(8, 200)).requires_grad_()
    weights, above = kernel.weights(scores), torch.randn(8, 200)
    weights.backward(above)
    exact = scores.detach().double().requires_grad_()
    expected = kernel.weights(exact)
    expected.backward(above.double())
    torch.testing.assert_close(weights.double(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(1e38 * scores.grad.double(), 1e38 * exact.grad, rtol=0, atol=1e-5)


def test_a_least_sum_divides_rows_that_sum_to_less_and_is_a_constant_there():
    scores = torch.tensor([[0.1, 0.2, -1.0], [0.4, 0.9, 0.3], [0.25, 0.25, 0.0]], dtype=torch.float64)
    scores, grad = scores.requires_grad_(), torch.tensor([[1.0, -2.0, 0.5]] * 3, dtype=torch.float64)
    expected = scores.relu() / scores.relu().sum(-1, keepdim=True).clamp_min(0.5)
    expected_gradient = torch.autograd.grad(expected, scores, grad)
    weights = NormalizedReLU(min_total=0.5).weights(scores)
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(torch.autograd.grad(weights, scores, grad), expected_gradient)


@pytest.mark.parametrize("largest", [1e-33, 1e-29])
def test_the_floor_of_normalised_responses_is_0_where_they_are_told_apart_from_none(largest):
    """Else an index that leaves out pairs below the floor would leave out what the uniform fall-back gives weight."""
    is_uniform = bool(NormalizedReLU().weights(torch.tensor([[largest, -1.0]]))[0, 1] > 0)
    assert is_uniform == (largest < 1e-31)
    assert NormalizedReLU().score_floor(torch.tensor(largest)).item() == (-torch.inf if is_uniform else 0.0)


@FUNCTION
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_functions_take_any_dtype_and_dimension_absent_entries_and_nan(function, dtype):
    scores = torch.randn(5, 5, 3, dtype=torch.float64).to(dtype)
    scores[1, 2:] = scores[2] = scores[4, 0, 0] = -torch.inf
    scores[4, 4, :2] = torch.nan  # beside an absent entry, and alone
    along_middle = function(scores, dim=1)
    assert along_middle.dtype == dtype
    across = function(scores.transpose(1, 2)).transpose(1, 2)
    torch.testing.assert_close(along_middle, across, rtol=0, atol=0, equal_nan=True)
    assert bool((along_middle[1, 2:] == 0).all())
    assert bool((along_middle[2] == 0).all())
    assert bool(along_middle[4, 1:, :2].isnan().all())
    total = along_middle.double().sum(1)
    assert torch.equal(total.isnan(), torch.isnan(scores).any(1))
    expected = torch.ones(3, 3).double()
    torch.testing.assert_close(total[[0, 1, 3]], expected, rtol=0, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("base", ["gaussian", "uniform"])
def test_ties_at_the_last_place_go_to_the_most_recent(base):
    scores = torch.tensor([[1.0, 0.0, 2.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 9.0], [3.0, 3.0, 3.0, 3.0, 3.0]])
    kept = NearestNeighbours(base, 3).weights(scores) > 0
    assert [row.nonzero().flatten().tolist() for row in kept] == [[0, 2, 4], [2, 3, 4], [2, 3, 4]]


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


BETA = torch.tensor(6.0, dtype=torch.float64)
COMPACT = [Epanechnikov(), Biweight(), Triweight(), RectifiedPolynomial(1.5), ReLUmax(), ReLUmax(0.4)]


@pytest.fixture
def distances_and_similarities():
    generator = torch.Generator().manual_seed(3)
    keys = normalize(torch.randn(300, 5, generator=generator, dtype=torch.float64), dim=-1)
    queries = normalize(torch.randn(20, 5, generator=generator, dtype=torch.float64), dim=-1)
    return torch.cdist(queries, keys), queries @ keys.T


@pytest.mark.parametrize("kernel", [*COMPACT, NearestNeighbours("uniform", 9)], ids=identifier)
def test_bandwidth_is_the_radius_of_the_support(kernel, distances_and_similarities):
    distances, similarities = distances_and_similarities
    h = kernel.bandwidth(BETA * similarities, BETA)
    inside = distances <= h[:, None] * (1 + 1e-9)
    assert torch.equal(inside, kernel.weights(BETA * similarities) > 0)
    assert torch.equal(inside.sum(-1), kernel.support_size(BETA * similarities))


def test_fewer_pairs_than_neighbours_reach_as_far_as_the_farthest(distances_and_similarities):
    distances, similarities = distances_and_similarities
    h = NearestNeighbours("gaussian", 9).bandwidth(BETA * similarities, BETA, torch.arange(300) < 5)
    torch.testing.assert_close(h, distances[:, :5].amax(1))


def test_bandwidth_of_the_fixed_kernels_is_the_given_one(distances_and_similarities):
    distances, similarities = distances_and_similarities
    for kernel in (Gaussian(), NormalizedReLU()):
        slope, intercept = kernel.affine(BETA)
        scores = slope * similarities + (0 if intercept is None else intercept)
        torch.testing.assert_close(kernel.bandwidth(scores, BETA), BETA.rsqrt().expand(20))
    support = (distances < BETA.rsqrt()).sum(-1)
    some = support > 0
    assert bool(some.any())
    assert torch.equal(kernel.support_size(scores)[some], support[some])


# Of each way to find the threshold, and of each other formula, one.
IN_GRAPHS = "normalized_relu-0.0 biweight knn-gaussian-3".split()


@pytest.mark.grid  # compiles
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # the compiler's own
@some("kernel", all_kernels(), by_default=lambda kernel: identifier(kernel) in IN_GRAPHS, ids=identifier)
def test_compiled_where_python_cannot_look_at_numbers_a_kernel_gives_the_same(kernel):
    """Of queries that see everything, ties, less than k pairs, one pair, nothing, and no positive score."""
    torch._dynamo.reset()
    scores = 2 * torch.randn(6, 70, dtype=torch.float64)  # more than four groups of the threshold's search
    visible = torch.ones(6, 70, dtype=torch.bool)
    scores[1] = scores[1].round()
    visible[2, 2:] = visible[3, 1:] = visible[4] = False
    scores[5] = -scores[5].abs()
    above = torch.randn_like(scores.requires_grad_())
    results = []
    for weights in (kernel.weights, torch.compile(kernel.weights, backend="aot_eager", fullgraph=True)):
        result = weights(scores, visible)
        results.append((result.detach(), torch.autograd.grad((result * above).sum(), scores)[0]))
    torch.testing.assert_close(*results, rtol=0, atol=1e-13)
