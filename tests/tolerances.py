"""Tolerances that several tests share, each with its reason."""

import torch

from tessera.testing.laws import REORDERED_FLOAT32, REORDERED_FLOAT64  # noqa: F401 (for the tests)

# Golden files: values recorded in float64; two correct programs differ by rounding, amplified at most 1e5-fold.
GOLDEN_VALUE = 1e-9
# Gradients, relative to the tensor's largest entry: cancellation costs two further digits (case A5).
GOLDEN_GRADIENT = 1e-7
# Float32, as a multiple of the error that the published code itself makes in float32: one draw of rounding of each.
GOLDEN_FLOAT32_RATIO = 10


def close(actual, expected):
    """Float64 tensors, equal up to the order of sums."""
    torch.testing.assert_close(actual, expected, rtol=REORDERED_FLOAT64, atol=REORDERED_FLOAT64)


def assert_within(actual, expected, relative, least=1.0):
    """Tensors of any type, in lists or by name, against float64 ones: within `relative` of the largest entry, or of
    `least` (gradients that are 0 but for rounding are smaller)."""
    assert len(actual) == len(expected)
    for name in expected if isinstance(expected, dict) else range(len(expected)):
        left, right = actual[name], expected[name]
        assert left.shape == right.shape, name
        if right.numel():
            bound = relative * max(least, right.abs().max().item())
            assert (left.double() - right).abs().max().item() <= bound, name  # NaN fails
