"""Diagonal batching computes what reading segment after segment computes."""

import pytest
import torch

from tessera.base.errors import TesseraError
from tessera.models.armt.diagonal import read_diagonally, read_stream_diagonally
from tessera.models.recurrence import read_stream
from tests.covering import each_value
from tests.models.armt.bases import make, same_memory, tokens
from tests.refusals import refused
from tests.tolerances import close


@each_value(family=["gpt2", "gpt_neox", "llama", "qwen3"], segments=[1, 2, 5])
def test_logits_and_memory(family, segments):
    model, ids = make(family=family), tokens(2, 8 * segments)
    before = model(tokens(2, 16)).memory_state
    for state in (None, before):
        expected = model(ids, memory_state=state)
        logits, memory = read_diagonally(model, ids, state)
        close(logits, expected.logits)
        same_memory(memory, expected.memory_state)


def test_one_memory_is_asked_by_many():
    model, ids = make(), tokens(4, 16)
    state = model(tokens(2, 19)).memory_state
    expected = model(ids, memory_state=state)
    logits, memory = read_diagonally(model, ids, state)
    close(logits, expected.logits)
    assert memory.batch_size == 4
    refused("divides 3, the rows of input_ids; got 2", read_diagonally, model, ids[:3], state)


def test_closed_gates_leave_the_memory_empty():
    model, ids = make(strength_stretch=0.1, gate_normalizer=True), tokens(2, 24)
    with torch.no_grad():
        for memory in model.memories.in_order():
            memory.strength.weight.zero_()
            memory.strength.bias.fill_(-6.0)
    state = read_diagonally(model, ids)[1]
    assert all(layer.empty.all() for layer in state.layers)
    assert not state.z.any()


def test_gradients():
    model, ids = make(own_memory_positions=True, update_order="sequential"), tokens(1, 24)
    both = (model(ids).logits, read_diagonally(model, ids)[0])
    expected, actual = (torch.autograd.grad(logits.square().sum(), list(model.parameters())) for logits in both)
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9 * b.abs().max().item())


@pytest.mark.parametrize("segments", [1, 2, 5])
def test_a_stream(segments):
    """In parts of whole segments, the last of them short, and going on from an earlier memory."""
    model, ids = make(), tokens(1, 3 * 8 + 5)[0].tolist()
    for before in (None, model(tokens(1, 16)).memory_state):
        same_memory(read_stream_diagonally(model, iter(ids), before, segments), read_stream(model, ids, before))
    assert not read_stream_diagonally(model, []).segments_read.any()


def test_refusals():
    refused("segments must be at least 1; got 0", read_stream_diagonally, make(), [1], segments=0)
    refused("be ARMT", read_stream_diagonally, make("rmt"), [1])
    refused("whole segments of 8 tokens", read_diagonally, make(), tokens(1, 12))
    refused("be ARMT", read_diagonally, make("rmt"), tokens(1, 8))
    with pytest.raises(TesseraError, match=r"torch\.vmap can batch them; got: .* Read with model"):
        read_diagonally(make(family="memory_mosaic"), tokens(1, 16))
