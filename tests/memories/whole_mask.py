"""A memory against one kernel regression with the whole T x T mask."""

from functools import partial
from unittest.mock import patch

import torch

from tessera.memories import pair_memory
from tessera.ops.kernel_regression import Call, reference
from tests.tolerances import REORDERED_FLOAT64


def by_the_whole_mask(query, key, value, *, window, expected_window, **arguments):
    """The reference over all pairs, told nothing of trimming; the window must be the expected one."""
    assert window.span == expected_window.span
    assert torch.equal(torch.as_tensor(window.delay), torch.as_tensor(expected_window.delay))
    return reference.run(Call(query, key, value, window=window, **arguments))


def expect_the_whole_mask(recall, leaves, window):
    """`recall()` and its gradients by `leaves` are those of the reference over all pairs under `window`."""
    with patch.object(pair_memory, "kernel_regression", partial(by_the_whole_mask, expected_window=window)):
        expected = results(recall, leaves)
    for ours, theirs in zip(results(recall, leaves), expected):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=REORDERED_FLOAT64)


def results(recall, leaves):
    """The output and its gradients, zero where there is none."""
    y = recall()
    probe = torch.randn(y.shape, dtype=y.dtype, generator=torch.Generator().manual_seed(4))
    gradients = torch.autograd.grad((y * probe).sum(), leaves, allow_unused=True)
    return [y, *(torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, gradients))]
