"""The entmax package's float64 numbers (golden family D), values and gradients."""

from functools import partial

import pytest
import torch

from tessera.kernels import entmax, sparsemax
from tests.golden_files import cases, load
from tests.tolerances import GOLDEN_FLOAT32_RATIO, GOLDEN_GRADIENT, GOLDEN_VALUE

FUNCTIONS = {
    "sparsemax": sparsemax,
    "entmax15": partial(entmax, alpha=1.5),
    "bisect_1.2": partial(entmax, alpha=1.2),
    "bisect_4over3": partial(entmax, alpha=4 / 3),
    "bisect_1.5": partial(entmax, alpha=1.5),
    "bisect_1.75": partial(entmax, alpha=1.75),
}


def runs(tensors):
    """(kind, function name) of every recorded run."""
    return [tuple(name.split("/")[:2]) for name in tensors if name.endswith("/p64")]


@pytest.mark.parametrize("case", cases("D_entmax"))
def test_float64_values_and_gradients(case):
    tensors, _ = load("D_entmax", case)
    checked = 0
    for kind, function in runs(tensors):
        scores = tensors[f"{kind}/scores"].double().requires_grad_()
        actual = FUNCTIONS[function](scores)
        (grad,) = torch.autograd.grad((tensors[f"{kind}/w"] * actual).sum(), scores)
        expected, expected_grad = tensors[f"{kind}/{function}/p64"], tensors[f"{kind}/{function}/grad64"]
        assert (actual - expected).abs().max() <= GOLDEN_VALUE, (kind, function)
        assert (grad - expected_grad).abs().max() <= GOLDEN_GRADIENT * expected_grad.abs().max(), (kind, function)
        checked += 1
    assert checked >= 12


@pytest.mark.parametrize("case", cases("D_entmax"))
def test_float32_values(case):
    # One rounding of the threshold (1e-7) enters each entry r times; the published error is the other measure.
    tensors, description = load("D_entmax", case)
    for kind, function in runs(tensors):
        actual = FUNCTIONS[function](tensors[f"{kind}/scores"])
        recorded = description["stats"][f"{kind}/{function}"]["f32_vs_f64_p"]
        bound = GOLDEN_FLOAT32_RATIO * max(min(recorded, 1e-7), 6e-8)
        assert (actual - tensors[f"{kind}/{function}/p64"]).abs().max() <= bound, (kind, function)
