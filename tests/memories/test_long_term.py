"""Long-term memory: its window, for one delay and for one per sequence."""

import pytest
import torch

from tessera.kernels import kernel_from_config
from tessera.memories.short_and_long_term import LongTermMemory
from tessera.ops.kernel_regression import Window
from tests.memories.whole_mask import expect_the_whole_mask
from tests.tolerances import REORDERED_FLOAT64


def memory(kernel="gaussian"):
    torch.manual_seed(3)
    return LongTermMemory(16, 2, kernel_from_config(kernel)).double()


@pytest.mark.parametrize("kernel", ["gaussian", "normalized_relu"])
@pytest.mark.parametrize("delay", [1, 2, 7, 20, 25, torch.tensor([1, 1]), torch.tensor([3, 8]), torch.tensor([25, 2])])
@pytest.mark.parametrize("packed", [False, True])
def test_the_window_is_that_of_the_whole_mask(kernel, delay, packed):
    """Forward and gradients, against one kernel regression with the whole T x T mask."""
    layer, x = memory(kernel), torch.randn(2, 20, 16, dtype=torch.float64, requires_grad=True)
    documents = torch.tensor([[-1] * 4 + [0] * 3 + [1] * 13, [0] * 15 + [1] * 5]) if packed else None
    leaves = (x, layer.bandwidth.log_slope)
    expect_the_whole_mask(lambda: layer(x, documents=documents, delay=delay)[0], leaves, Window(delay))


@pytest.mark.parametrize("kernel", ["gaussian", "normalized_relu"])
def test_an_empty_window_still_gives_every_parameter_a_gradient(kernel):
    layer = memory(kernel)
    y, _ = layer(torch.randn(2, 5, 16, dtype=torch.float64), delay=9)
    assert y.eq(0).all()
    y.sum().backward()
    assert all(parameter.grad is not None and parameter.grad.eq(0).all() for parameter in layer.parameters())


@pytest.mark.parametrize("delay", [1, 3, torch.tensor([2, 9])])
def test_counts_are_what_is_seen(delay):
    """num_pairs against counting the pairs old enough, one by one."""
    positions = torch.arange(1, 13)[None].expand(2, -1)
    ages = torch.arange(12)[:, None] - torch.arange(12)
    limits = delay.view(-1, 1, 1) if isinstance(delay, torch.Tensor) else delay
    assert torch.equal(Window(delay).num_pairs(positions), (ages >= limits).expand(2, -1, -1).sum(-1))


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["gaussian", "normalized_relu"])
def test_pairs_enter_after_m_steps_whatever_m_was_before(kernel):
    """Steps under one delay, then under another: each step sees what its own delay says."""
    layer, x = memory(kernel), torch.randn(1, 30, 16, dtype=torch.float64)
    expected = {delay: layer(x, delay=delay)[0] for delay in (2, 5)}
    state = None
    for step in range(30):
        delay = 5 if 10 <= step < 20 else 2
        y, state = layer(x[:, step : step + 1], state, keep_state=True, delay=delay)
        torch.testing.assert_close(y[:, 0], expected[delay][:, step], rtol=0, atol=REORDERED_FLOAT64)
    assert state.pairs.length == 29
