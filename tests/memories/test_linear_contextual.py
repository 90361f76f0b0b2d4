"""The linear contextual memory beyond the published numbers (tests/interop/test_three_moons.py has those)."""

import pytest
import torch

from tessera.memories.linear_contextual import ComplexLinear, LinearContextualMemory
from tests.defaults import expect_the_same_with_other_defaults
from tests.refusals import refused


def memory(**options):
    return LinearContextualMemory(6, 3, 2, **{"dtype": torch.float64, **options})


def test_the_default_device_and_dtype_make_no_difference():
    for model in (memory(), memory(kernel="normalized_relu", inverse_bandwidth=0.6)):
        x = torch.randn(2, 7, 6, dtype=torch.float64)
        expect_the_same_with_other_defaults(lambda: model(x)[:1])  # noqa: B023


def test_first_weights_are_a_projected_real_layer():
    parts = torch.view_as_real(ComplexLinear(200, 200).weight.detach())
    bound = 400**-0.5
    assert parts.abs().max() <= bound
    # The mean of two uniform numbers: variance bound^2 / 6.
    assert parts.std().item() == pytest.approx(bound / 6**0.5, rel=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": "mean"}, "output must be one of projection, sum"),
        ({"output": "sum"}, r"head_dim must be input_dim \(6\)"),
        ({"embedding_dim": 7}, "must be even for complex numbers"),
        ({"inverse_bandwidth": -1.0}, "inverse_bandwidth must be positive; got -1.0"),
    ],
)
def test_refusals(options, message):
    refused(message, LinearContextualMemory, 6, 3, 2, **options)


def test_nothing_cannot_be_generated():
    """It was one observation."""
    refused("steps must be at least 1; got 0", memory().generate, torch.randn(2, 7, 6, dtype=torch.float64), 0)
