"""Norm is exact away from zero, and quiet at zero."""

import pytest
import torch

from tessera.ops.unit_norm import unit_norm


@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_values_and_gradients(eps):
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(unit_norm(x, eps), x / (x.norm(dim=-1, keepdim=True) + eps))
    assert torch.autograd.gradcheck(lambda x: unit_norm(x, eps), x)


def test_a_zero_vector_gives_zero_with_zero_gradient():
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    y = unit_norm(x)
    y.sum().backward()
    assert torch.equal(y[0], torch.zeros(2))
    assert torch.equal(x.grad[0], torch.zeros(2))
    torch.testing.assert_close(y[1], torch.tensor([0.6, 0.8]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_measured_in_float32(dtype):
    x = torch.full((4, 1024), 300.0, dtype=dtype)  # the squares overflow float16
    length = unit_norm(x).float().norm(dim=-1)
    torch.testing.assert_close(length, torch.ones(4), rtol=1e-2, atol=0)  # eight bits of mantissa


@pytest.mark.parametrize("needs_gradient", [True, False])
def test_a_nan_makes_its_vector_nan(needs_gradient):
    y = unit_norm(torch.tensor([[1.0, torch.nan], [3.0, 4.0]], requires_grad=needs_gradient))
    assert y.isnan().tolist() == [[True, True], [False, False]]
