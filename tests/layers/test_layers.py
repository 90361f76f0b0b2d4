"""Bandwidths, learned and adaptive: where they start, and the scores they give."""

import pytest
import torch

from tessera.kernels import KERNELS, NormalizedReLU, kernel_from_config
from tessera.layers.bandwidth import AdaptiveBandwidth, Bandwidth


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


GAUSSIAN = kernel_from_config("gaussian")


def test_kernels_turn_it_into_scores():
    layer, counts = AdaptiveBandwidth(2, GAUSSIAN), torch.tensor([[5, 9]])
    beta = layer.inverse_bandwidth(counts)
    slope, intercept = layer(kernel_from_config("normalized_relu"), counts)
    torch.testing.assert_close(slope, 2 * beta)
    torch.testing.assert_close(intercept, 1 - 2 * beta)


def test_more_pairs_than_float16_counts_to_have_a_bandwidth():
    layer, counts = AdaptiveBandwidth(2, GAUSSIAN), torch.tensor([[1, 65_504, 65_520, 200_000]])
    expected = layer.inverse_bandwidth(counts)
    torch.testing.assert_close(layer.half().inverse_bandwidth(counts).float(), expected, rtol=0.01, atol=0)
