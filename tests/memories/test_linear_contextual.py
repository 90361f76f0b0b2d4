"""The linear contextual memory beyond the published numbers (tests/interop/test_three_moons.py has those)."""

import pytest
import torch

from tessera.kernels import Triweight
from tessera.memories.linear_contextual import ComplexLinear, LinearContextualMemory
from tests.refusals import refused
from tests.tolerances import REORDERED_FLOAT32, REORDERED_FLOAT64


def memory(heads=3, **options):
    return LinearContextualMemory(6, heads, 6 // heads, **{"dtype": torch.float64, **options})


@pytest.mark.parametrize("heads", [1, 3])
def test_54_real_parameters(heads):
    weights = list(memory(heads).parameters())
    assert [tuple(weight.shape) for weight in weights] == [(3, 3)] * 3
    assert all(weight.is_complex() for weight in weights)
    assert sum(torch.view_as_real(weight).numel() for weight in weights) == 54


def test_the_formula_in_complex_numbers():
    """Word for word as in the paper's figure 3, with `k . k'` the real part of the complex product."""
    model = memory()
    x = torch.randn(2, 7, 6, dtype=torch.float64)
    z = torch.view_as_complex(x.unflatten(-1, (3, 2)).contiguous())
    keys, values = z @ model.key_extractor.weight.T, z @ model.value_extractor.weight.T
    expected = torch.zeros(2, 7, 3, dtype=torch.complex128)
    for step in range(1, 7):
        for head in range(3):
            near = (50.0 * (keys[:, step, head, None].conj() * keys[:, :step, head]).real).exp()
            weights = near / near.sum(-1, keepdim=True)
            expected[:, step, head] = (weights * values[:, 1 : step + 1, head]).sum(-1)
    expected = torch.view_as_real(expected @ model.output.weight.T).flatten(-2)
    torch.testing.assert_close(model(x)[0], expected, rtol=0, atol=REORDERED_FLOAT64)


def test_the_default_device_makes_no_difference():
    for model in (memory(), memory(kernel="normalized_relu", inverse_bandwidth=0.6)):
        x = torch.randn(2, 7, 6, dtype=torch.float64)
        expected = model(x)[0]
        with torch.device("meta"):
            assert torch.equal(model(x)[0], expected)


def test_first_weights_are_a_projected_real_layer():
    parts = torch.view_as_real(ComplexLinear(200, 200).weight.detach())
    bound = 400**-0.5
    assert parts.abs().max() <= bound
    # The mean of two uniform numbers: variance bound^2 / 6.
    assert parts.std().item() == pytest.approx(bound / 6**0.5, rel=0.02)


def test_any_kernel_and_the_other_backends():
    x = torch.nn.functional.normalize(torch.randn(2, 40, 3, 2), dim=-1).flatten(2)
    for kernel in ("gaussian", Triweight()):
        model = LinearContextualMemory(6, 3, 2, kernel=kernel, norm_eps=0.0)
        slow = model(x)[0]
        model.backend = "reference"
        reference = model(x)[0]
        model.backend = "chunked"
        torch.testing.assert_close(model(x)[0], reference, rtol=0, atol=REORDERED_FLOAT32)
        torch.testing.assert_close(slow, reference, rtol=0, atol=REORDERED_FLOAT32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": "mean"}, "output must be one of projection, sum"),
        ({"output": "sum"}, r"head_dim must be input_dim \(6\)"),
        ({"embedding_dim": 7}, "must be even for complex numbers"),
    ],
)
def test_refusals(options, message):
    refused(message, LinearContextualMemory, 6, 3, 2, **options)
