"""ARMT's segments: the measured updates against the states themselves."""

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import tessera
from tessera.inspection import trace

IDS = (torch.arange(1, 30)[None] ** 2) % 30


def wrapped(make, **options):
    torch.manual_seed(0)
    base = GPT2LMHeadModel(GPT2Config(vocab_size=30, n_embd=16, n_layer=2, n_head=2, n_positions=32))
    model = make(base, segment_size=8, num_memory_tokens=2, **options).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.3)
    return model


@pytest.mark.parametrize("order", ["parallel", "sequential"])
@pytest.mark.parametrize("correction", [True, False])
def test_armt(order, correction):
    model = wrapped(tessera.wrap, memory_dim=4, update_order=order, correction=correction)
    segments = trace(model, IDS).segments
    assert segments.written.shape == (4, 2)
    state = model.empty_memory(1)
    for index, part in enumerate(IDS.split(8, 1)):
        before, state = state, model(part, memory_state=state).memory_state
        torch.testing.assert_close(segments.norm[index], state.A[:, 0].flatten(1).norm(dim=1).detach())
        change = (state.A - before.A)[:, 0].flatten(1).norm(dim=1).detach()
        # the triangle inequality both ways: what was added is what was written less what was erased
        assert (change <= segments.written[index] + segments.erased[index] + 1e-4).all()
        assert (change >= (segments.written[index] - segments.erased[index]).abs() - 1e-4).all()
    assert segments.erased[0].abs().max() < 1e-6 or order == "sequential"
    assert (segments.read[0] == 0).all()
    assert (segments.read[1:] > 0).all()
    assert torch.equal(segments.gamma[0], torch.ones(2))
    assert (segments.gamma[1:] < 1).any() == correction


def test_rmt_and_prmt():
    for make, layers in ((tessera.wrap_rmt, 1), (tessera.wrap_prmt, 2)):
        done = trace(wrapped(make), IDS)
        assert done.segments.norm.shape == (4, layers)
        assert (done.segments.written > 0).all()
        assert done.segments.gamma.isnan().all()
        assert done.memories == ()
