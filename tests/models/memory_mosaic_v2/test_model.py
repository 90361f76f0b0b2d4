"""What Memory Mosaics v2 do beyond the contract of all models: long-term memories, delays in training."""

from functools import partial

import pytest
import torch

from tessera import MemoryMosaicV2ForCausalLM
from tests.models.contract import Case, read_in_parts, tokens, v2
from tests.refusals import refused
from tests.tolerances import close

STEPS = 33


def build(**changes):
    """With a delay of 4, in training of 2 to 9."""
    return Case(partial(v2, **changes)).build()


def test_the_long_term_memory_can_be_switched_off_and_on(tmp_path):
    model, ids = build(), tokens(2, STEPS)
    with_it = model(ids).logits
    model.disable_long_term_memory()
    without = model(ids).logits
    assert torch.equal(without[:, :4], with_it[:, :4])
    assert not torch.allclose(without, with_it)
    actual, state = read_in_parts(model, ids, [20, 13])
    close(actual, without)
    model.save_pretrained(tmp_path)  # as a part of the configuration; the weights are saved
    model.enable_long_term_memory()
    assert torch.equal(model(ids).logits, with_it)
    saved = MemoryMosaicV2ForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    # The tensors of a file begin anywhere in memory, and processors add what is not aligned in another order.
    close(saved(ids).logits, without)
    assert all(torch.equal(weight, saved.state_dict()[name]) for name, weight in model.state_dict().items())
    saved.enable_long_term_memory()
    close(saved(ids).logits, with_it)
    message = "past_key_values must hold the long-term memories that are enabled now"
    refused(message, model, ids[:, :1], past_key_values=state)


def test_a_model_without_long_term_memories():
    full, lacking = build(), build(long_term_memory=False)
    lacking.load_state_dict({name: p for name, p in full.state_dict().items() if ".long_term." not in name})
    full.disable_long_term_memory()
    ids = tokens(2, STEPS)
    assert torch.equal(lacking(ids).logits, full(ids).logits)
    refused("enable_long_term_memory: the model must have long-term memories", lacking.enable_long_term_memory)


def test_the_delay_may_change_after_loading_and_between_steps(tmp_path):
    model, ids = build(), tokens(2, STEPS)
    before = model(ids).logits
    model.set_long_term_delay(7)
    after = model(ids).logits
    assert torch.equal(after[:, :4], before[:, :4])
    assert not torch.allclose(after, before)
    torch.testing.assert_close(after, build(long_term_delay=7)(ids).logits)
    model.save_pretrained(tmp_path)
    assert MemoryMosaicV2ForCausalLM.from_pretrained(tmp_path).config.long_term_delay == 7
    model = build(num_layers=1)  # deeper layers remember what the old delay made of the earlier steps
    _, state = read_in_parts(model, ids[:, :20], [20])
    model.set_long_term_delay(7)
    actual = model(ids[:, 20:], past_key_values=state).logits
    close(actual, model(ids).logits[:, 20:])
    refused("delay must be a positive integer; got 0", model.set_long_term_delay, 0)


def test_training_draws_delays_from_the_seeded_generator():
    model, ids = build().train(), tokens(8, STEPS)

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
    model, ids = build(training_long_term_delay=(5, 5)), tokens(1, STEPS)
    fixed = model.train()(ids, document_ids=documents).logits
    each = {"long_term_delay": torch.tensor([5])}
    model.model.layer_arguments = lambda hidden: each
    actual = model(ids, document_ids=documents).logits
    close(actual, fixed)
    state = model(ids[:, :11], document_ids=None if documents is None else documents[:, :11], use_cache=True)
    rest = None if documents is None else documents[:, 11:]
    rest = model(ids[:, 11:], document_ids=rest, past_key_values=state.past_key_values).logits
    close(rest, fixed[:, 11:])
