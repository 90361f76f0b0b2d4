"""Compiled, operations have the gradients they have alone: PyTorch 2.11 can lose them without a word."""

import pytest
import torch

from tests.covering import some
from tests.ops.test_second_derivatives import OPERATIONS, drawn

pytestmark = pytest.mark.grid  # compiles

NAMES = ("unit_norm", "linear_cross_entropy", "linear_recurrence", "gated_average", "selective_scan")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # the compiler's own
@some(
    ("name", "dtype"),
    [(name, dtype) for name in NAMES for dtype in (torch.float32, torch.float64)],
    # Conversions to the same type are the danger.
    by_default=[("linear_cross_entropy", torch.float32), ("linear_recurrence", torch.float32)],
)
def test_gradients_are_those_of_the_operation_alone(name, dtype):
    torch._dynamo.reset()
    operation, shapes = OPERATIONS[name]
    leaves = [leaf.requires_grad_() for leaf in drawn(*shapes, dtype=dtype)]
    results = [run(*leaves) for run in (operation, torch.compile(operation, backend="aot_eager", fullgraph=True))]
    alone, compiled = (torch.autograd.grad(result.pow(3).sum(), leaves) for result in results)
    torch.testing.assert_close(compiled, alone)
    assert all(bool(gradient.any()) for gradient in alone)
