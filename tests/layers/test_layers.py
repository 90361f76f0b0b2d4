"""Bandwidths, learned and adaptive, and keys of leaky averages."""

import pytest
import torch

from tessera.kernels import KERNELS, NormalizedReLU, kernel_from_config
from tessera.layers.bandwidth import AdaptiveBandwidth, Bandwidth
from tessera.layers.key_extractors import LeakyKeyExtractor
from tests.tolerances import REORDERED_FLOAT64


def similarities(rows: int = 64, pairs: int = 32, width: int = 16) -> torch.Tensor:
    """Of random unit vectors, as of keys before training."""
    generator = torch.Generator().manual_seed(0)
    queries = torch.nn.functional.normalize(torch.randn(rows, width, generator=generator), dim=-1)
    keys = torch.nn.functional.normalize(torch.randn(pairs, width, generator=generator), dim=-1)
    return (queries @ keys.T).requires_grad_()


def share_of_rows_with_gradient(kernel, slope, intercept):
    scores = similarities()
    weights = kernel.weights(scores * slope + (0 if intercept is None else intercept))
    values = torch.randn(weights.shape[-1], generator=torch.Generator().manual_seed(1))
    (gradient,) = torch.autograd.grad((weights @ values).sum(), scores)
    return (gradient.abs().sum(-1) > 0).float().mean().item()


@pytest.mark.parametrize("name", KERNELS)
def test_a_fresh_memory_has_a_gradient_whatever_its_kernel(name):
    kernel = kernel_from_config(name)
    fixed = Bandwidth(1, kernel)(kernel)
    adaptive = AdaptiveBandwidth(1, kernel)(kernel, torch.tensor([[32]]))
    for scores in (fixed, adaptive):
        slope, intercept = (None if part is None else part.detach() for part in scores)
        # A compact kernel leaves some rows with one neighbour alone.
        assert share_of_rows_with_gradient(kernel, slope, intercept) > 0.5


def test_normalized_relu_starts_at_the_published_weights():
    kernel = NormalizedReLU()
    slope, intercept = Bandwidth(3, kernel)(kernel)
    torch.testing.assert_close(slope, torch.ones(3, 1), rtol=0, atol=1e-6)
    torch.testing.assert_close(intercept, torch.zeros(3, 1), rtol=0, atol=1e-6)
    cosines = torch.tensor([0.5, -0.2, 0.3])
    torch.testing.assert_close(kernel.weights(cosines), torch.tensor([0.625, 0.0, 0.375]))


def test_a_free_intercept_starts_at_zero():
    assert Bandwidth(2, NormalizedReLU(), free_intercept=True).intercept.tolist() == [0.0, 0.0]


GAUSSIAN = kernel_from_config("gaussian")


def test_the_papers_formula():
    layer = AdaptiveBandwidth(2, GAUSSIAN).double()
    with torch.no_grad():
        layer.log_offset.copy_(torch.tensor([1.0, 2.0]).log())
        layer.log_slope.copy_(torch.tensor([3.0, 0.5]).log())
        layer.exponent_rate.copy_(torch.tensor([0.5, 0.25]).log())  # the sign does not matter: exp(-|t|)
    beta = layer.inverse_bandwidth(torch.tensor([[0, 1, 16]]))
    expected = torch.tensor([[1.0, 1 + 3.0, 1 + 3 * 4.0], [2.0, 2 + 0.5, 2 + 0.5 * 2.0]], dtype=torch.float64)
    torch.testing.assert_close(beta[0], expected, rtol=0, atol=1e-6)  # the parameters above are float32 logs
    with torch.no_grad():
        layer.exponent_rate.neg_()
    torch.testing.assert_close(layer.inverse_bandwidth(torch.tensor([[0, 1, 16]])), beta)


def test_an_empty_memory_has_a_finite_bandwidth_and_gradient():
    layer = AdaptiveBandwidth(2, GAUSSIAN)
    layer.inverse_bandwidth(torch.zeros(1, 3, dtype=torch.long)).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())
    assert layer.log_offset.grad.eq(3 * torch.e).all()
    assert layer.log_slope.grad.eq(0).all()


def test_kernels_turn_it_into_scores():
    layer, counts = AdaptiveBandwidth(2, GAUSSIAN), torch.tensor([[5, 9]])
    beta = layer.inverse_bandwidth(counts)
    slope, intercept = layer(kernel_from_config("normalized_relu"), counts)
    torch.testing.assert_close(slope, 2 * beta)
    torch.testing.assert_close(intercept, 1 - 2 * beta)


HEADS, WIDTH, STEPS, EPS = 2, 3, 7, 0.2


def extractor(**changes):
    torch.manual_seed(0)
    return LeakyKeyExtractor(6, HEADS, WIDTH, norm_eps=EPS, **changes).double()


def test_mean_keys_equal_their_definition_and_go_on_in_chunks():
    layer, x = extractor(mean=True), torch.randn(1, STEPS, 6, dtype=torch.float64)
    candidates = layer.projection(x).unflatten(-1, (HEADS, WIDTH))[0]
    decay = layer.decay()
    expected = torch.zeros(1, HEADS, STEPS, WIDTH, dtype=torch.float64)
    for head in range(HEADS):
        for step in range(STEPS):
            weights = decay[head] ** torch.arange(step, -1, -1, dtype=torch.float64)
            mean = (weights[:, None] * candidates[: step + 1, head]).sum(0) / weights.sum()
            expected[0, head, step] = mean / (mean.norm() + EPS)
    keys, carry = layer(x)
    torch.testing.assert_close(keys, expected, rtol=0, atol=REORDERED_FLOAT64)
    first, carry = layer(x[:, :3])
    rest, _ = layer(x[:, 3:], carry)
    torch.testing.assert_close(torch.cat([first, rest], dim=2), expected, rtol=0, atol=REORDERED_FLOAT64)
    assert not torch.allclose(extractor()(x)[0], expected, atol=1e-3)  # with an epsilon the divisor counts
