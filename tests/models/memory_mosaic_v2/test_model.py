"""What Memory Mosaics v2 do beyond the contract of all models: long-term memories, delays in training."""

import pytest
import torch

from tessera import MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM, TesseraError
from tests.refusals import refused
from tests.tolerances import REORDERED_FLOAT64

VOCABULARY = 61
STEPS = 33
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 24, "num_layers": 2, "num_heads": 3, "intermediate_size": 40}
WINDOWS = {"short_term_span": 6, "long_term_delay": 4, "training_long_term_delay": (2, 9)}


def build(dtype=torch.float64, **changes):
    torch.manual_seed(1)
    return MemoryMosaicV2ForCausalLM(MemoryMosaicV2Config(**{**SIZES, **WINDOWS, **changes})).to(dtype).eval()


def tokens(batch=2, steps=STEPS):
    return torch.randint(0, VOCABULARY, (batch, steps))


@torch.no_grad()
def read_in_chunks(model, ids, sizes):
    state, logits = None, []
    for chunk in ids.split(sizes, dim=1):
        output = model(chunk, past_key_values=state, use_cache=True)
        state, logits = output.past_key_values, [*logits, output.logits]
    return torch.cat(logits, dim=1), state


def test_how_far_each_memory_sees():
    """One layer, one changed token: the short-term memory forgets it after h steps, the long-term one waits for m."""
    ids = tokens(batch=1)
    changed = ids.clone()
    changed[0, 10] = (changed[0, 10] + 1) % VOCABULARY

    def first_last(model, memory):
        with torch.no_grad():
            module = getattr(model.model.layers[0], memory)
            read = [model.model.layers[0].memory_norm(model.model.embed_tokens(i)) for i in (ids, changed)]
            # Keys of later steps carry the change along; cut that off to see the pairs alone.
            module.key_extractor.decay.weight.fill_(0.0).add_(read[0][0, 11] * 1e6)
            delay = {"delay": 4} if memory == "long_term" else {}
            before, after = (module(r, **delay)[0] for r in read)
        steps = (before != after).any(dim=-1)[0].nonzero()[:, 0]
        return int(steps[0]), int(steps[-1])

    # Pairs 9 (whose value looks ahead) and 10 change, and so does the query of step 10 itself.
    assert first_last(build(num_layers=1), "short_term") == (10, 10 + 5)
    assert first_last(build(num_layers=1), "long_term")[1] == STEPS - 1


def test_the_long_term_memory_can_be_switched_off_and_on(tmp_path):
    model, ids = build(), tokens()
    with_it = model(ids).logits
    model.disable_long_term_memory()
    without = model(ids).logits
    assert torch.equal(without[:, :4], with_it[:, :4])
    assert not torch.allclose(without, with_it)
    actual, state = read_in_chunks(model, ids, [20, 13])
    torch.testing.assert_close(actual, without, rtol=0, atol=REORDERED_FLOAT64)
    model.save_pretrained(tmp_path)  # what is switched off is a matter of the moment: its weights are saved
    model.enable_long_term_memory()
    assert torch.equal(model(ids).logits, with_it)
    saved = MemoryMosaicV2ForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    # The tensors of a file begin anywhere in memory, and processors add what is not aligned in another order.
    torch.testing.assert_close(saved(ids).logits, with_it, rtol=0, atol=REORDERED_FLOAT64)
    assert all(torch.equal(weight, saved.state_dict()[name]) for name, weight in model.state_dict().items())
    with pytest.raises(TesseraError, match="past_key_values must hold the long-term memories that are enabled now"):
        model(ids[:, :1], past_key_values=state)


def test_a_model_without_long_term_memories():
    full, lacking = build(), build(long_term_memory=False)
    lacking.load_state_dict({name: p for name, p in full.state_dict().items() if ".long_term." not in name})
    full.disable_long_term_memory()
    ids = tokens()
    assert torch.equal(lacking(ids).logits, full(ids).logits)
    refused("enable_long_term_memory: the model must have long-term memories", lacking.enable_long_term_memory)


def test_the_delay_may_change_after_loading_and_between_steps(tmp_path):
    model, ids = build(), tokens()
    before = model(ids).logits
    model.set_long_term_delay(7)
    after = model(ids).logits
    assert torch.equal(after[:, :4], before[:, :4])
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, build(long_term_delay=7)(ids).logits)
    model.save_pretrained(tmp_path)
    assert MemoryMosaicV2ForCausalLM.from_pretrained(tmp_path).config.long_term_delay == 7
    model = build(num_layers=1)  # deeper layers remember what the old delay made of the earlier steps
    _, state = read_in_chunks(model, ids[:, :20], [20])
    model.set_long_term_delay(7)
    actual = model(ids[:, 20:], past_key_values=state).logits
    torch.testing.assert_close(actual, model(ids).logits[:, 20:], rtol=0, atol=REORDERED_FLOAT64)
    refused("delay must be a positive integer; got 0", model.set_long_term_delay, 0)


def test_training_draws_delays_from_the_seeded_generator():
    model, ids = build().train(), tokens(batch=8)

    def loss(seed):
        torch.manual_seed(seed)
        return model(ids, labels=ids).loss

    assert loss(3) == loss(3)
    assert loss(3) != loss(4)
    drawn = torch.cat([model.model.layer_arguments(ids)["long_term_delay"] for _ in range(50)])
    assert set(drawn.tolist()) == set(range(2, 10))
    assert model.eval().model.layer_arguments(ids)["long_term_delay"] == 4


@pytest.mark.parametrize("documents", [None, torch.tensor([[0] * 10 + [1] * 23])])
def test_one_delay_for_all_equals_one_delay_each(documents):
    model, ids = build(training_long_term_delay=(5, 5)), tokens(batch=1)
    fixed = model.train()(ids, document_ids=documents).logits
    each = {"long_term_delay": torch.tensor([5])}
    model.model.layer_arguments = lambda hidden: each
    actual = model(ids, document_ids=documents).logits
    torch.testing.assert_close(actual, fixed, rtol=0, atol=REORDERED_FLOAT64)
    state = model(ids[:, :11], document_ids=None if documents is None else documents[:, :11], use_cache=True)
    rest = None if documents is None else documents[:, 11:]
    rest = model(ids[:, 11:], document_ids=rest, past_key_values=state.past_key_values).logits
    torch.testing.assert_close(rest, fixed[:, 11:], rtol=0, atol=REORDERED_FLOAT64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gates_of_a_hundred_train(dtype):
    model, ids = build(dtype).train(), tokens()
    with torch.no_grad():
        for layer in model.model.layers:
            for memory in (layer.short_term, layer.long_term):
                memory.key_extractor.gate.weight.mul_(1000)
    loss = model(ids, labels=ids).loss
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_the_short_term_memory_stays_small():
    model = build()
    _, state = read_in_chunks(model, tokens(steps=200), [100] + [1] * 100)
    short, long = state.layers[0]
    assert short.pairs.length < 2 * 6
    assert short.pairs.key_buffer.shape[2] <= 64  # the store's smallest capacity
    assert long.pairs.length == 199


def test_impossible_configurations_are_refused_all_problems_at_once():
    with pytest.raises(TesseraError, match=r"num_heads must divide hidden_size \(24\); got 5") as error:
        MemoryMosaicV2Config(**{**SIZES, "num_heads": 5, "training_long_term_delay": [9, 2], "kernel": "gausian"})
    assert "training_long_term_delay must be two integers 1 <= lowest <= highest; got [9, 2]." in str(error.value)
    assert "unknown kernel 'gausian'. Did you mean 'gaussian'" in str(error.value)
    refused("unknown argument 'long_term_span'", MemoryMosaicV2Config, long_term_span=3)
    refused("short_term_span must be at least 2; got 1", MemoryMosaicV2Config, short_term_span=1)
