"""Short- and long-term memories: windows, delays that change, states; and the borders of documents."""

from types import SimpleNamespace

import pytest
import torch

from tessera.kernels import kernel_from_config
from tessera.memories.documents import continued_documents, stored_documents
from tessera.memories.short_and_long_term import LongTermMemory, ShortTermMemory
from tests.refusals import refused
from tests.tolerances import close

SPAN = 6
KERNEL = pytest.mark.parametrize("kernel", ["gaussian", "normalized_relu"])


def memory(kind, *options, kernel="gaussian"):
    torch.manual_seed(3)
    return kind(16, 2, kernel_from_config(kernel), *options).double()


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
        close(y[:, 0], expected[delay][:, step])
    assert state.pairs.length == 29


@torch.no_grad()
def test_the_state_of_a_short_window_stops_growing():
    layer, state, sizes = memory(ShortTermMemory, SPAN), None, []
    for _ in range(200):
        _, state = layer(torch.randn(1, 1, 16, dtype=torch.float64), state, keep_state=True)
        sizes.append(state.pairs.length)
    assert max(sizes) == 2 * SPAN - 1
    assert min(sizes[SPAN:]) >= SPAN - 1
    assert state.pairs.key_buffer.shape[2] <= 64  # the store's smallest capacity


def test_a_window_without_room_is_refused():
    refused("ShortTermMemory: span must be at least 2", memory, ShortTermMemory, 1)


def test_a_pair_whose_next_step_is_another_document_is_not_stored():
    # Document 0 comes back: the pair at its first border must not be seen from there.
    steps = torch.tensor([[0, 0, 1, 1, 0], [-1, -1, 2, 2, 2]])
    assert stored_documents(steps).tolist() == [[0, -1, 1, -1], [-1, -1, 2, 2]]


def test_steps_without_documents_continue_the_last_one():
    state = SimpleNamespace(carry=None, document=torch.tensor([[4], [5]]))
    assert continued_documents(torch.zeros(2, 3, 1), state, None).tolist() == [[4, 4, 4], [5, 5, 5]]
    assert continued_documents(torch.zeros(2, 3, 1), None, None) is None


def test_behind_a_state_each_row_keeps_its_delay_wherever_its_padding_lies():
    long, x = LongTermMemory(8, 2, "gaussian").double().eval(), torch.randn(3, 12, 8, dtype=torch.float64)
    _, state = long(x[:, :6], keep_state=True)
    documents = torch.tensor([[0, 0, 0, 0, -1, -1], [0, -1, 0, 0, 0, 0], [0, 0, 0, 0, 0, -1]])
    answers, _ = long(x[:, 6:], state, documents, keep_state=True, delay=torch.tensor([1, 2, 4]))
    for row, delay in enumerate((1, 2, 4)):
        real, alone = documents[row] >= 0, state.select_batch(torch.tensor([row]))
        expected, _ = long(x[row : row + 1, 6:][:, real], alone, delay=delay)
        torch.testing.assert_close(answers[row : row + 1, real], expected)
