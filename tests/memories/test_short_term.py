"""Short-term memory: its window, its cost, its constant state."""

import pytest
import torch

from tessera import TesseraError
from tessera.kernels import kernel_from_config
from tessera.memories.gated import Reading
from tessera.memories.short_term import ShortTermMemory
from tessera.ops.kernel_regression import Window
from tests.tolerances import REORDERED_FLOAT64

SPAN = 6


def memory(kernel="gaussian", span=SPAN):
    torch.manual_seed(3)
    return ShortTermMemory(16, 2, kernel_from_config(kernel), span).double()


@pytest.mark.parametrize("kernel", ["gaussian", "normalized_relu"])
@pytest.mark.parametrize("steps", [1, 2, SPAN - 1, SPAN, SPAN + 1, 2 * SPAN, 2 * SPAN + 1, 41])
@pytest.mark.parametrize("packed", [False, True])
def test_blocks_equal_one_window_over_everything(monkeypatch, kernel, steps, packed):
    """Forward and gradients, against one kernel regression with the whole T x T mask."""
    layer, x = memory(kernel), torch.randn(2, steps, 16, dtype=torch.float64, requires_grad=True)
    documents = torch.tensor([[-1] * 4 + [0] * 5 + [1] * 32, [0] * 30 + [1] * 11])[:, :steps] if packed else None

    def whole(reading, delay):
        return reading.regress(layer.kernel, Window(delay=1, span=SPAN))

    results = []
    for recall in (layer.recall, whole):
        monkeypatch.setattr(layer, "recall", recall)
        y, _ = layer(x, documents=documents)
        generator = torch.Generator().manual_seed(4)
        probe = torch.randn(y.shape, dtype=y.dtype, generator=generator)
        results.append((y, *torch.autograd.grad((y * probe).sum(), (x, layer.bandwidth.log_slope), allow_unused=True)))
    for ours, theirs in zip(*results):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=0, atol=REORDERED_FLOAT64)


def test_cost_is_linear_in_the_length(monkeypatch):
    scores = []

    def counting(reading, kernel, window):
        scores.append(reading.queries[..., 0].numel() * reading.pairs.length)
        return regress(reading, kernel, window)

    regress = Reading.regress
    monkeypatch.setattr(Reading, "regress", counting)
    layer, steps = memory(), 40 * SPAN
    layer(torch.randn(1, steps, 16, dtype=torch.float64))
    assert sum(scores) <= 2 * steps * 2 * SPAN  # heads, steps, 2h pairs; all pairs would be 20 times as many


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("first", [1, 4, 30])
def test_continuing_by_a_long_piece(first, packed):
    """A second call that spans several blocks, with fewer and with more than h pairs behind it."""
    layer, x = memory(), torch.randn(2, 61, 16, dtype=torch.float64)
    documents = (torch.arange(61) // 17).expand(2, -1) if packed else None
    whole, _ = layer(x, documents=documents)
    halves = [None, None] if documents is None else documents.split([first, 61 - first], dim=1)
    before, state = layer(x[:, :first], documents=halves[0], keep_state=True)
    after, _ = layer(x[:, first:], state, documents=halves[1])
    torch.testing.assert_close(torch.cat([before, after], dim=1), whole, rtol=0, atol=REORDERED_FLOAT64)


@torch.no_grad()
def test_the_state_stops_growing():
    layer, state, sizes = memory(), None, []
    for _ in range(200):
        _, state = layer(torch.randn(1, 1, 16, dtype=torch.float64), state, keep_state=True)
        sizes.append(state.pairs.length)
    assert max(sizes) == 2 * SPAN - 1
    assert min(sizes[SPAN:]) >= SPAN - 1


def test_counts():
    assert memory().num_pairs(torch.arange(1, 10)).tolist() == [0, 1, 2, 3, 4, 5, 5, 5, 5]


def test_a_window_without_room_is_refused():
    with pytest.raises(TesseraError, match="ShortTermMemory: span must be at least 2"):
        memory(span=1)
