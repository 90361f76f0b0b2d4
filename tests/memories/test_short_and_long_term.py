"""Short- and long-term memories: windows, one delay and one per sequence, states; and the borders of documents."""

from functools import partial
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from tessera.kernels import kernel_from_config
from tessera.memories import pair_memory
from tessera.memories.documents import continued_documents, stored_documents
from tessera.memories.short_and_long_term import LongTermMemory, ShortTermMemory
from tessera.ops.kernel_regression import Call, Window, reference
from tests.refusals import refused
from tests.tolerances import REORDERED_FLOAT64

SPAN = 6
KERNEL = pytest.mark.parametrize("kernel", ["gaussian", "normalized_relu"])
PACKED = pytest.mark.parametrize("packed", [False, True])


def memory(kind, *options, kernel="gaussian"):
    torch.manual_seed(3)
    return kind(16, 2, kernel_from_config(kernel), *options).double()


@KERNEL
@pytest.mark.parametrize("steps", [1, SPAN, SPAN + 1, 41])
@PACKED
def test_the_short_window_is_that_of_the_whole_mask(kernel, steps, packed):
    """Forward and gradients, against one kernel regression with the whole T x T mask."""
    layer, x = memory(ShortTermMemory, SPAN, kernel=kernel), torch.randn(2, steps, 16).double().requires_grad_()
    documents = torch.tensor([[-1] * 4 + [0] * 5 + [1] * 32, [0] * 30 + [1] * 11])[:, :steps] if packed else None
    leaves = (x, layer.bandwidth.log_slope)
    expect_the_whole_mask(lambda: layer(x, documents=documents)[0], leaves, Window(1, SPAN))


@KERNEL
@pytest.mark.parametrize("delay", [1, 2, 7, 20, 25, torch.tensor([1, 1]), torch.tensor([3, 8]), torch.tensor([25, 2])])
@PACKED
def test_the_long_window_is_that_of_the_whole_mask(kernel, delay, packed):
    layer, x = memory(LongTermMemory, kernel=kernel), torch.randn(2, 20, 16).double().requires_grad_()
    documents = torch.tensor([[-1] * 4 + [0] * 3 + [1] * 13, [0] * 15 + [1] * 5]) if packed else None
    leaves = (x, layer.bandwidth.log_slope)
    expect_the_whole_mask(lambda: layer(x, documents=documents, delay=delay)[0], leaves, Window(delay))


@KERNEL
def test_an_empty_window_still_gives_every_parameter_a_gradient(kernel):
    layer = memory(LongTermMemory, kernel=kernel)
    y, _ = layer(torch.randn(2, 5, 16, dtype=torch.float64), delay=9)
    assert y.eq(0).all()
    y.sum().backward()
    assert all(parameter.grad is not None and parameter.grad.eq(0).all() for parameter in layer.parameters())


@torch.no_grad()
@KERNEL
def test_pairs_enter_after_m_steps_whatever_m_was_before(kernel):
    """Steps under one delay, then under another: each step sees what its own delay says."""
    layer, x = memory(LongTermMemory, kernel=kernel), torch.randn(1, 30, 16, dtype=torch.float64)
    expected = {delay: layer(x, delay=delay)[0] for delay in (2, 5)}
    state = None
    for step in range(30):
        delay = 5 if 10 <= step < 20 else 2
        y, state = layer(x[:, step : step + 1], state, keep_state=True, delay=delay)
        torch.testing.assert_close(y[:, 0], expected[delay][:, step], rtol=0, atol=REORDERED_FLOAT64)
    assert state.pairs.length == 29


@torch.no_grad()
def test_the_state_of_a_short_window_stops_growing():
    layer, state, sizes = memory(ShortTermMemory, SPAN), None, []
    for _ in range(200):
        _, state = layer(torch.randn(1, 1, 16, dtype=torch.float64), state, keep_state=True)
        sizes.append(state.pairs.length)
    assert max(sizes) == 2 * SPAN - 1
    assert min(sizes[SPAN:]) >= SPAN - 1


def test_a_window_without_room_is_refused():
    refused("ShortTermMemory: span must be at least 2", memory, ShortTermMemory, 1)


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


def test_a_pair_whose_next_step_is_another_document_is_not_stored():
    # Document 0 comes back: the pair at its first border must not be seen from there.
    steps = torch.tensor([[0, 0, 1, 1, 0], [-1, -1, 2, 2, 2]])
    assert stored_documents(steps).tolist() == [[0, -1, 1, -1], [-1, -1, 2, 2]]


def test_steps_without_documents_continue_the_last_one():
    state = SimpleNamespace(carry=None, document=torch.tensor([[4], [5]]))
    assert continued_documents(torch.zeros(2, 3, 1), state, None).tolist() == [[4, 4, 4], [5, 5, 5]]
    assert continued_documents(torch.zeros(2, 3, 1), None, None) is None
