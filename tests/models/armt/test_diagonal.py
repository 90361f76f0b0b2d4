"""Diagonal batching computes what reading segment after segment computes."""

import pytest
import torch

from tessera.errors import TesseraError
from tessera.models.armt.diagonal import read_diagonally
from tests.models.armt.bases import make, tokens
from tests.tolerances import REORDERED_FLOAT64


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama", "qwen3"])
@pytest.mark.parametrize("segments", [1, 2, 5])
def test_logits_and_memory(family, segments):
    model, ids = make(family=family), tokens(2, 8 * segments)
    before = model(tokens(2, 16)).memory_state
    for state in (None, before):
        expected = model(ids, memory_state=state)
        logits, memory = read_diagonally(model, ids, state)
        torch.testing.assert_close(logits, expected.logits, rtol=REORDERED_FLOAT64, atol=REORDERED_FLOAT64)
        for name, tensor in expected.memory_state.tensors().items():
            torch.testing.assert_close(memory.tensors()[name], tensor, rtol=REORDERED_FLOAT64, atol=REORDERED_FLOAT64)


def test_gradients():
    model, ids = make(own_memory_positions=True, update_order="sequential"), tokens(1, 24)
    both = (model(ids).logits, read_diagonally(model, ids)[0])
    expected, found = (torch.autograd.grad(logits.square().sum(), list(model.parameters())) for logits in both)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9 * b.abs().max().item())


def test_refusals():
    with pytest.raises(TesseraError, match="whole segments of 8 tokens"):
        read_diagonally(make(), tokens(1, 12))
    with pytest.raises(TesseraError, match="be ARMT"):
        read_diagonally(make("rmt"), tokens(1, 8))
