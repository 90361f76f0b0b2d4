"""Bandwidths and support sizes that inspection shows."""

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
)
from tests.kernels.contract import all_kernels, identifier

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


@pytest.mark.parametrize("kernel", all_kernels(), ids=identifier)
def test_bandwidth_per_head_and_for_queries_that_see_nothing(kernel):
    beta = torch.tensor([[2.0], [9.0]])
    slope, intercept = kernel.affine(beta)
    scores = slope[..., None] * normalize(torch.randn(2, 7, 11), dim=-1)
    scores = scores if intercept is None else scores + intercept[..., None]
    visible = torch.ones(7, 11, dtype=torch.bool)
    visible[0] = False
    h = kernel.bandwidth(scores, beta, visible)
    assert h.shape == (2, 7)
    assert torch.equal(h.isnan(), torch.tensor([True] + [False] * 6).expand(2, 7))
    assert bool((h[:, 1:] > 0).all())
    assert torch.equal(kernel.support_size(scores, visible)[:, 0], torch.zeros(2, dtype=torch.int64))
