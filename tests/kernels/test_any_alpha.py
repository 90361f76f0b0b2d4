"""alpha-entmax of any alpha, one for each row and learned, is that of the entmax package."""

import math

import pytest
import torch

from tessera.kernels import entmax
from tests.refusals import refused

SHAPES = [(), (1,), (5, 1), (4, 1, 1), (4, 5, 1)]


def scores(dtype=torch.float64):
    return torch.randn(4, 5, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def drawn(shape, low=1.1, high=3.5):
    uniform = torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return low + (high - low) * uniform


@pytest.mark.parametrize("alpha", [2.0001, 2.5, 3.0, 5.0])
def test_numbers_above_two(alpha):
    peer = pytest.importorskip("entmax")
    x = scores().requires_grad_()
    expected = peer.entmax_bisect(x, torch.tensor(alpha, dtype=torch.float64), dim=-1, n_iter=80)
    actual = entmax(x, alpha)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)
    above = torch.randn_like(x)
    gradients = [torch.autograd.grad((result * above).sum(), x)[0] for result in (actual, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_alpha_for_each_row_that_is_learned(shape):
    peer = pytest.importorskip("entmax")
    x, alpha = scores().requires_grad_(), drawn(shape).requires_grad_()
    full = alpha.expand(4, 5, 1)
    results = [entmax(x, alpha), peer.entmax_bisect(x, full, dim=-1, n_iter=80)]
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)
    above = torch.randn_like(x)
    gradients = [torch.autograd.grad((result * above).sum(), (x, alpha)) for result in results]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-9)
    assert torch.autograd.gradcheck(entmax, (x, alpha), eps=1e-7, atol=1e-5, fast_mode=True)


def test_it_is_the_function_of_numbers():
    for alpha in (1.2, 1.5, 2.0):
        tensor = torch.tensor(alpha, dtype=torch.float64)
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
            x = scores(dtype)
            torch.testing.assert_close(entmax(x, tensor), entmax(x, alpha), rtol=tolerance, atol=tolerance)


def test_other_dimensions_absent_entries_and_nan():
    x, alpha = scores(), drawn((4, 1, 9))
    x[0, 2:, 3], x[1, :, 4], x[2, 1, 5] = -torch.inf, -torch.inf, torch.nan
    along = entmax(x, alpha, dim=1)
    torch.testing.assert_close(along, entmax(x.mT, alpha.mT).mT, equal_nan=True)
    assert bool((along[0, 2:, 3] == 0).all())
    assert bool((along[1, :, 4] == 0).all())
    assert bool(along[2, :, 5].isnan().all())
    assert int(along.isnan().sum()) == 5


@pytest.mark.parametrize(
    ("alpha", "message"),
    [
        *((alpha, f"alpha must be a finite number of at least 1; got {alpha}") for alpha in (0.99, math.inf, math.nan)),
        ("1.5", "alpha must be a finite number of at least 1; got 1.5"),
        (torch.tensor([1.0]), "alpha must be above 1 where it is a tensor; got 1.0"),
        (torch.full((4, 1, 9), 1.5), r"alpha must broadcast to \(4, 5, 1\); got \(4, 1, 9\)"),
    ],
)
def test_other_alphas_are_refused(alpha, message):
    refused(message, entmax, scores(), alpha)
