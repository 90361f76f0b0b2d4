"""Wrapping, configurations, saving, freezing and adapting."""

import threading
from dataclasses import replace

import pytest
import torch
from transformers import GPT2LMHeadModel

import tessera.armt as armt
from tessera.models.armt import ARMTConfig, ARMTForCausalLM, ARMTState
from tests.covering import some
from tests.models.armt.bases import BASES, KINDS, make, tokens
from tests.refusals import refused


def test_a_fresh_model_has_its_memory_initialised():
    model = ARMTForCausalLM(ARMTConfig(base_config=BASES["gpt2"]().config, segment_size=8, memory_dim=4))
    for memory in model.memories:
        assert not memory.value.weight.any()
        assert memory.query.weight.std() > 0.05
    assert model.memory_tokens.tokens.std().item() == pytest.approx(0.02, rel=0.3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_memory_is_stored_exactly(kind, tmp_path):
    model, ids = make(kind), tokens(3, 20)
    for state in (model.empty_memory(1), model(ids).memory_state):
        state.save(tmp_path / "memory.safetensors")
        loaded = type(state).load(tmp_path / "memory.safetensors")
        assert all(torch.equal(loaded.tensors()[name], tensor) for name, tensor in state.tensors().items())
    rows = [loaded.select_batch(torch.tensor([i])) for i in (2, 0)]
    both = type(state).stack(rows)
    assert torch.equal(both.tokens_read, torch.tensor([20, 20]))
    question = tokens(2, 5)
    expected = model(question, memory_state=state.select_batch(torch.tensor([2, 0]))).logits
    assert torch.equal(model(question, memory_state=both).logits, expected)


def test_memories_of_different_models_are_no_batch():
    """Only the first one's model was kept: the others were taken for states of that."""
    model, ids = make(), tokens(1, 9)
    state = model(ids).memory_state
    with torch.no_grad():
        next(model.parameters()).mul_(2)
    other = model(ids).memory_state
    refused("states must be of one model; got one of other weights", type(state).stack, [state, other])
    assert type(state).stack([replace(state, model=None), state]).model == state.model


def test_other_files_are_no_memories(tmp_path):
    path = tmp_path / "memory.safetensors"
    make("rmt")(tokens(1, 9)).memory_state.save(path)
    refused("be a stored armt memory; got rmt file", ARMTState.load, path)
    path.write_text("nothing")
    refused("must be a stored memory", ARMTState.load, path)


def test_a_damaged_fingerprint_is_no_memory(tmp_path):
    state = make()(tokens(1, 9)).memory_state
    for model in ("another", state.model[:-1], "0" * 16):
        replace(state, model=model).save(tmp_path / "memory")
        refused("be a memory as it was stored", ARMTState.load, tmp_path / "memory")


def test_freezing_the_base_leaves_the_memory_to_learn():
    model, ids = make().train(), tokens(2, 20)
    model.base.requires_grad_(False)
    model(ids, labels=ids).loss.backward()
    learned = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert learned == {name for name, _ in model.named_parameters() if not name.startswith("base.")}
    assert all(p.grad.abs().max() > 0 for n, p in model.named_parameters() if n in learned)


def test_two_threads_do_not_meet():
    model, texts = make(), [tokens(1, 40), tokens(1, 24)]
    expected = [model(text).logits for text in texts]
    actual = [[], []]

    def work(which):
        for _ in range(5):
            actual[which].append(model(texts[which]).logits)

    threads = [threading.Thread(target=work, args=(which,)) for which in (0, 1)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for which in (0, 1):
        torch.testing.assert_close(actual[which], 5 * [expected[which]])


def test_attention_stays_causal_whatever_is_configured():
    for implementation in ("eager", "sdpa"):
        base = GPT2LMHeadModel._from_config(BASES["gpt2"]().config, attn_implementation=implementation)
        model = armt.wrap(base, segment_size=8, num_memory_tokens=2, memory_dim=4)
        assert model.base.config._attn_implementation == implementation
        assert model.config._attn_implementation == implementation


def test_other_refusals():
    model = make()
    refused("not be wrapped already", armt.wrap, model)
    refused("not be wrapped already", armt.RMTForCausalLM, armt.RMTConfig(base_config=model.config))
    refused("without a learned table", armt.wrap, BASES["llama"](), segment_size=8, own_memory_positions=True)
    refused("be a Hugging Face model", armt.wrap, torch.nn.Linear(2, 2))
    refused("base_config must be given", ARMTForCausalLM, ARMTConfig())
    refused("recurrence must be one of", armt.wrap_prmt, BASES["gpt2"](), 8, 3, recurrence="any")


@some("family", BASES, by_default=["gpt2", "memory_mosaic"])
def test_the_vocabulary_can_grow_and_is_saved(family, tmp_path):
    model, ids = make("armt", family, own_memory_positions=family == "gpt2"), tokens(1, 20)
    before = model(ids).logits
    model.resize_token_embeddings(70, mean_resizing=False)
    after = model(ids).logits
    assert (model.config.vocab_size, after.shape[-1]) == (70, 70)
    assert torch.equal(after[..., : before.shape[-1]], before)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path, dtype=model.dtype).eval()
    assert torch.equal(again(ids).logits, after)
