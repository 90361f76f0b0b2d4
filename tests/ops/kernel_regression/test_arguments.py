"""What kernel regression takes, and the one line that each mistake gets."""

import math

import pytest
import torch

import tessera
from tessera.base.errors import TesseraError
from tessera.kernels import EntmaxOfRows, Gaussian, NearestNeighbours, entmax, kernel_from_config
from tessera.ops.kernel_regression import Window, kernel_regression
from tests.covering import each_value
from tests.defaults import expect_the_same_with_other_defaults
from tests.kernels.contract import all_kernels, identifier
from tests.refusals import refused

B, H, T, N, K, V = 2, 3, 5, 7, 4, 6


def arguments(**changes):
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(B, H, *size, generator=generator) for size in ((T, K), (N, K), (N, V)))
    return {"query": query, "key": key, "value": value, "kernel": "gaussian", "slope": 2.0, **changes}


def integers(*shape):
    return torch.zeros(*shape, dtype=torch.long)


MISTAKES = {
    "three dimensions": ({"query": torch.zeros(H, T, K)}, "query, key and value must have shapes"),
    "another width": ({"key": torch.zeros(B, H, N, K + 1)}, "query, key and value must have shapes"),
    "values of other pairs": ({"value": torch.zeros(B, H, N + 1, V)}, "query, key and value must have shapes"),
    "mixed dtypes": (
        {"value": torch.zeros(B, H, N, V).double()},
        "query, key and value must have one floating-point dtype; got torch.float32, torch.float32, torch.float64.",
    ),
    "integers": (
        {name: integers(B, H, N, K) for name in ("query", "key", "value")},
        "query, key and value must have one floating-point dtype",
    ),
    "a slope for others": ({"slope": torch.ones(H + 1, 1)}, r"slope must broadcast to \(B, H, T\) = \(2, 3, 5\)"),
    "neither slope nor bandwidth": ({"slope": None}, r"inverse_bandwidth \(or slope\) must be given; got None"),
    "slope and bandwidth": (
        {"inverse_bandwidth": 2.0},
        "slope and intercept must be left out beside inverse_bandwidth",
    ),
    "a bandwidth below 0": ({"slope": None, "inverse_bandwidth": -2.0}, "inverse_bandwidth must be positive; got -2.0"),
    "no bandwidth": ({"slope": None, "inverse_bandwidth": math.nan}, "inverse_bandwidth must be finite; got nan"),
    "a slope without end": ({"slope": math.inf}, "slope must be finite; got inf"),
    "alphas for others": (
        {"kernel": EntmaxOfRows(torch.full((H + 1, 1, 1), 1.5))},
        r"kernel 'entmax of rows' must broadcast to \(2, 3, 5, 1\), one for each row; got \(4, 1, 1\)",
    ),
    "a slope that is none": ({"slope": "8"}, "slope must be a number or a tensor; got str"),
    "a slope alone where the kernel has an intercept": (
        {"kernel": "normalized_relu"},
        "intercept must be given beside a slope for the kernel 'normalized_relu'; got None. Give inverse_bandwidth",
    ),
    "an intercept too large": ({"intercept": torch.ones(1, B, H, T)}, r"intercept must broadcast to \(B, H, T\)"),
    "query documents too short": (
        {"query_documents": integers(B, T - 1), "pair_documents": integers(B, N)},
        r"query_documents must be integers \(2, 5\); got torch.int64 \(2, 4\)",
    ),
    "pair documents too long": (
        {"query_documents": integers(B, T), "pair_documents": integers(B, N + 1)},
        r"pair_documents must be integers \(2, 7\); got torch.int64 \(2, 8\)",
    ),
    "documents of no integers": (
        {"query_documents": torch.zeros(B, T), "pair_documents": integers(B, N)},
        "query_documents must be integers",
    ),
    "documents of one side": ({"query_documents": integers(B, T)}, "must be given together"),
    "delays of another batch": ({"window": Window(torch.tensor([1, 2, 3]))}, r"one per sequence \(2,\)"),
    "a window that is none": ({"window": 3}, "window must be a Window or None; got 3"),
    "a negative offset": ({"query_offset": -1}, "query_offset must be an integer of at least 0; got -1"),
    "an unknown kernel": ({"kernel": "gausian"}, "unknown kernel 'gausian'. Did you mean 'gaussian'?"),
}


@pytest.mark.parametrize(("changes", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_explained(changes, message):
    with pytest.raises(TesseraError, match=message) as caught:
        kernel_regression(**arguments(**changes))
    assert "\n" not in str(caught.value)


def test_no_window_sees_the_future_and_a_span_holds_a_pair():
    for delay in (0, -3, 1.5, True, *map(torch.tensor, ([-3], [2, 0], [1.0], 2))):
        refused("Window: (every )?delay must be", Window, delay)
    for span in (0, 3, 3.5):
        refused("Window: span must be an integer that exceeds delay", Window, 3, span)


@each_value(
    kernel={identifier(kernel): kernel for kernel in all_kernels()},
    sizes=[(0, T, N), (B, 0, N), (B, T, 0), (B, 1, 0), (B, 0, 0)],
    window={"all": None, "past": Window(), "span": Window(2, 4), "each": "each"},
)
def test_nothing_gives_nothing(kernel, sizes, window):
    """No sequence, no query, no pair: an empty answer or zeros, and zeros as gradients."""
    batch, steps, pairs = sizes
    window = Window(torch.full((batch,), 2)) if window == "each" else window
    leaves = [torch.randn(batch, H, *size).requires_grad_() for size in ((steps, K), (pairs, K), (pairs, V))]
    documents = {"query_documents": integers(batch, steps), "pair_documents": integers(batch, pairs)}
    for masks in ({}, documents):
        y = kernel_regression(*leaves, kernel=kernel, inverse_bandwidth=3.0, window=window, **masks)
        assert y.shape == (batch, H, steps, V)
        assert y.eq(0).all()
        for gradient, leaf in zip(torch.autograd.grad(y.sum(), leaves), leaves, strict=True):
            assert gradient.shape == leaf.shape
            assert gradient.eq(0).all()


def test_a_kernel_by_name_and_numbers_for_scores():
    expected = kernel_regression(**arguments(kernel=Gaussian(), slope=torch.tensor(2.0)))
    assert torch.equal(kernel_regression(**arguments()), expected)
    assert torch.equal(tessera.kernel_regression(**arguments()), expected)
    neighbours = {"name": "knn", "base": "uniform", "k": 2}
    assert kernel_from_config(neighbours) == NearestNeighbours("uniform", 2)
    one = kernel_regression(**arguments(kernel=neighbours))
    assert torch.equal(one, kernel_regression(**arguments(kernel=NearestNeighbours("uniform", 2))))


@pytest.mark.parametrize("kernel", all_kernels(), ids=identifier)
def test_an_inverse_bandwidth_is_that_of_the_kernel(kernel):
    """A pair farther than h has no weight: with beta = 8 those of a similarity below 1 - 1 / 16."""
    slope, intercept = kernel.affine(torch.tensor(8.0))
    expected = kernel_regression(**arguments(kernel=kernel, slope=slope, intercept=intercept))
    for beta in (8.0, torch.tensor(8.0), torch.full((H, 1), 8.0)):
        actual = kernel_regression(**arguments(kernel=kernel, slope=None, inverse_bandwidth=beta))
        torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_numbers_are_as_precise_as_the_call():
    tensors = {name: arguments()[name].double() for name in ("query", "key", "value")}
    for kernel, numbers in {
        "gaussian": {"slope": 8.1, "intercept": 0.1},
        "normalized_relu": {"slope": 8.1, "intercept": 0.1},
        "biweight": {"inverse_bandwidth": 8.1},
    }.items():
        exact = {name: torch.tensor(number, dtype=torch.float64) for name, number in numbers.items()}
        actual = kernel_regression(**tensors, kernel=kernel, **numbers)
        assert torch.equal(actual, kernel_regression(**tensors, kernel=kernel, **exact))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kernel", ["gaussian", "biweight"])
def test_the_default_device_and_dtype_make_no_difference(kernel, dtype):
    """Blocks of sums are not in the default dtype."""

    def results():
        generator = torch.Generator("cpu").manual_seed(0)
        draws = (torch.randn(1, 1, 700, 4, generator=generator, dtype=torch.float64, device="cpu") for _ in range(3))
        leaves = [draw.to(dtype).requires_grad_() for draw in draws]
        y = kernel_regression(*leaves, kernel=kernel, slope=1.0, window=Window(delay=300))  # blocks see no pair
        entmaxes = entmax(leaves[0][0, 0].detach(), 2.5)
        return y, entmaxes, *torch.autograd.grad(y.sum(), leaves)

    expect_the_same_with_other_defaults(results)


def test_delays_may_lie_on_another_device():
    """As a window made on the CPU beside pairs on a GPU."""
    steps = torch.arange(4, device="meta")
    assert Window(delay=torch.tensor([2, 3])).visible(steps, steps).shape == (2, 1, 4, 4)
