"""Norm: quiet at zero. The scan of Mamba: its equation, its gradients, blocks of any size."""

import pytest
import torch

from tessera.ops import selective_scan as module
from tessera.ops.selective_scan import selective_scan
from tessera.ops.unit_norm import unit_norm
from tests.refusals import refused


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


@pytest.mark.parametrize("size", [3e-7, 1e-5, 6e4])
def test_float16_has_its_whole_range_in_training_too(size):
    """One over a length was rounded to float16: infinity for a short vector, three digits or fewer for a long one."""
    x = (size * torch.linspace(-1, 1, 512)).half().requires_grad_()
    y = unit_norm(x)
    torch.testing.assert_close(y, unit_norm(x.detach()), rtol=1e-3, atol=0)
    expected = x.detach().double().requires_grad_()
    above = torch.linspace(0, 1e-3 * size, 512).half() if size < 1 else 1e4 * torch.linspace(0, 1, 512).half()
    y.backward(above)
    unit_norm(expected).backward(above.double())
    torch.testing.assert_close(x.grad.double(), expected.grad, rtol=0, atol=5e-3 * float(expected.grad.abs().max()))


@pytest.mark.parametrize("needs_gradient", [True, False])
def test_a_nan_makes_its_vector_nan(needs_gradient):
    y = unit_norm(torch.tensor([[1.0, torch.nan], [3.0, 4.0]], requires_grad=needs_gradient))
    assert y.isnan().tolist() == [[True, True], [False, False]]


@pytest.mark.parametrize("needs_gradient", [True, False])
@pytest.mark.parametrize(("size", "dtype"), [(1e-30, torch.bfloat16), (1e-200, torch.float64)], ids=str)
def test_what_is_too_short_for_a_length_is_a_zero_vector(size, dtype, needs_gradient):
    """Its squares are 0; it must not become a vector of any other length."""
    y = unit_norm(torch.full((2, 3), size, dtype=dtype, requires_grad=needs_gradient))
    assert torch.equal(y, torch.zeros_like(y))


def inputs(batch=2, length=7, width=3, states=4, dtype=torch.float64):
    random = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=random, dtype=torch.float64)

    x, step, rate = normal(batch, length, width), normal(batch, length, width).exp(), -normal(width, states).exp()
    parts = (x, step, rate, normal(batch, length, states), normal(batch, length, states))
    return tuple(part.to(dtype).requires_grad_() for part in parts)


def step_by_step(x, step, rate, write, read):
    state, outputs = torch.zeros(len(x), *rate.shape, dtype=rate.dtype), []
    for t in range(x.shape[1]):
        new = (step[:, t] * x[:, t])[:, :, None] * write[:, t, None]
        state = torch.exp(step[:, t, :, None] * rate) * state + new
        outputs.append((state * read[:, t, None]).sum(-1))
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 100])
def test_values_and_gradients_with_any_number_of_steps_in_a_block(steps, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", steps * 2 * 3 * 4)
    mine, peers = inputs(), inputs()
    y, expected = selective_scan(*mine), step_by_step(*peers)
    torch.testing.assert_close(y, expected)
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
    (y * weights).sum().backward()
    (expected * weights).sum().backward()
    for part, peer in zip(mine, peers, strict=True):
        torch.testing.assert_close(part.grad, peer.grad)


def test_states_have_the_precision_of_the_rate():
    x, step, rate, write, read = (part.detach() for part in inputs(dtype=torch.float32))
    exact = selective_scan(x.bfloat16().float(), step.bfloat16().float(), rate, write, read)
    half = selective_scan(x.bfloat16(), step.bfloat16(), rate, write, read)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, exact.bfloat16())


@pytest.mark.parametrize("sizes", [(0, 7, 3, 4), (2, 7, 0, 4), (2, 7, 3, 0)])
def test_a_scan_of_nothing_is_nothing(sizes):
    tensors = inputs(*sizes)
    y = selective_scan(*tensors)
    assert y.shape == sizes[:3]
    assert all(gradient.eq(0).all() for gradient in torch.autograd.grad(y.sum(), tensors))


def test_a_scan_of_no_step_is_refused():
    refused("x must be .* with T >= 1", selective_scan, *inputs(2, 0))
