"""The bandwidth that shrinks as a memory fills."""

import torch

from tessera.kernels import kernel_from_config
from tessera.layers.bandwidth import AdaptiveBandwidth

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
