"""What `benchmarks.traffic` counts."""

import pytest
import torch

from benchmarks.traffic import Traffic

A, B = torch.zeros(4, 8), torch.zeros(8, 4)


@pytest.mark.parametrize(
    ("operation", "numbers"),
    [
        (lambda: A @ B, 32 + 32 + 16),
        (lambda: torch.mm(A, B, out=torch.empty(4, 4)), 32 + 32 + 16),
        (lambda: torch.empty(4, 8).copy_(A), 32 + 32),
        (lambda: torch.empty(4, 8).zero_(), 32),
        (lambda: torch.empty(4, 8).add_(A), 3 * 32),
        (lambda: A * A, 2 * 32),
        (lambda: A + torch.ones(4, 1).expand(4, 8), 4 + (32 + 4 + 32)),  # making the column, which is read once
        (lambda: A.view(32).unflatten(0, (8, 4)).transpose(0, 1), 0),
    ],
)
def test_bytes(operation, numbers):
    with Traffic() as traffic:
        operation()
    assert sum(traffic.bytes.values()) == 4 * numbers
