"""Short-term memory: its window, its cost, its constant state."""

import pytest
import torch

from tessera import TesseraError
from tessera.kernels import kernel_from_config
from tessera.memories.short_and_long_term import ShortTermMemory
from tessera.ops.kernel_regression import Window
from tests.memories.whole_mask import expect_the_whole_mask
from tests.tolerances import REORDERED_FLOAT64

SPAN = 6


def memory(kernel="gaussian", span=SPAN):
    torch.manual_seed(3)
    return ShortTermMemory(16, 2, kernel_from_config(kernel), span).double()


@pytest.mark.parametrize("kernel", ["gaussian", "normalized_relu"])
@pytest.mark.parametrize("steps", [1, SPAN, SPAN + 1, 41])
@pytest.mark.parametrize("packed", [False, True])
def test_the_window_is_that_of_the_whole_mask(kernel, steps, packed):
    """Forward and gradients, against one kernel regression with the whole T x T mask."""
    layer, x = memory(kernel), torch.randn(2, steps, 16, dtype=torch.float64, requires_grad=True)
    documents = torch.tensor([[-1] * 4 + [0] * 5 + [1] * 32, [0] * 30 + [1] * 11])[:, :steps] if packed else None
    leaves = (x, layer.bandwidth.log_slope)
    expect_the_whole_mask(lambda: layer(x, documents=documents)[0], leaves, Window(1, SPAN))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("first", [1, 4, 30])
def test_continuing_by_a_long_piece(first, packed):
    """A second call that spans several blocks, with fewer and with more than h pairs behind it."""
    layer, x = memory(), torch.randn(2, 61, 16, dtype=torch.float64)
    documents = (torch.arange(61) // 17).expand(2, -1) if packed else None
    at_once, _ = layer(x, documents=documents)
    halves = [None, None] if documents is None else documents.split([first, 61 - first], dim=1)
    before, state = layer(x[:, :first], documents=halves[0], keep_state=True)
    after, _ = layer(x[:, first:], state, documents=halves[1])
    torch.testing.assert_close(torch.cat([before, after], dim=1), at_once, rtol=0, atol=REORDERED_FLOAT64)


@torch.no_grad()
def test_the_state_stops_growing():
    layer, state, sizes = memory(), None, []
    for _ in range(200):
        _, state = layer(torch.randn(1, 1, 16, dtype=torch.float64), state, keep_state=True)
        sizes.append(state.pairs.length)
    assert max(sizes) == 2 * SPAN - 1
    assert min(sizes[SPAN:]) >= SPAN - 1


def test_counts():
    assert memory().window.num_pairs(torch.arange(1, 10)).tolist() == [0, 1, 2, 3, 4, 5, 5, 5, 5]


def test_a_window_without_room_is_refused():
    with pytest.raises(TesseraError, match="ShortTermMemory: span must be at least 2"):
        memory(span=1)
