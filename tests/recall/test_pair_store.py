"""A store of pairs is a value: appending to it leaves it, and every other store, as they were."""

import pytest
import torch

import tessera
from tessera.models.carried_state import read_on
from tessera.recall.pair_store import SMALLEST_CAPACITY, PairStore

SIZES = {"vocab_size": 20, "hidden_size": 8, "num_layers": 2, "num_heads": 2}


def mosaic():
    torch.manual_seed(0)
    return tessera.MemoryMosaicForCausalLM(tessera.MemoryMosaicConfig(**SIZES, num_persistent_slots=4)).double()


def mosaic_v2():
    torch.manual_seed(0)
    return tessera.MemoryMosaicV2ForCausalLM(tessera.MemoryMosaicV2Config(**SIZES)).double()


def pairs(count, value):
    return torch.full((2, 3, count, 4), float(value)), torch.full((2, 3, count, 5), -float(value))


def test_appending_keeps_order_and_grows():
    store = PairStore.of(*pairs(2, 0))
    for value in range(1, 3 * SMALLEST_CAPACITY):
        store = store.append(*pairs(1, value))
    expected = [0.0, 0.0] + [float(value) for value in range(1, 3 * SMALLEST_CAPACITY)]
    assert store.keys[0, 0, :, 0].tolist() == expected
    assert store.values[1, 2, :, 4].tolist() == [-value for value in expected]


def test_two_continuations_of_one_store_do_not_meet():
    base = PairStore.of(*pairs(1, 0)).append(*pairs(1, 1))
    first = base.append(*pairs(1, 2))
    second = base.append(*pairs(1, 3))
    third = first.append(*pairs(1, 4))
    assert base.keys[0, 0, :, 0].tolist() == [0, 1]
    assert first.keys[0, 0, :, 0].tolist() == [0, 1, 2]
    assert second.keys[0, 0, :, 0].tolist() == [0, 1, 3]
    assert third.keys[0, 0, :, 0].tolist() == [0, 1, 2, 4]


def test_appending_mostly_writes_in_place():
    store = PairStore.of(*pairs(1, 0)).append(*pairs(1, 1))
    assert store.append(*pairs(1, 2)).key_buffer.data_ptr() == store.key_buffer.data_ptr()


def test_documents_may_come_later():
    store = PairStore.of(*pairs(2, 0)).append(*pairs(1, 1), torch.tensor([[1], [-1]]))
    assert store.documents.tolist() == [[0, 0, 1], [0, 0, -1]]
    assert store.append(*pairs(1, 2)).documents.tolist() == [[0, 0, 1, 0], [0, 0, -1, 0]]


def test_gradients_reach_stored_pairs():
    keys, values = (tensor.requires_grad_() for tensor in pairs(1, 1))
    store = PairStore.of(*pairs(1, 0)).append(keys, values).append(*pairs(1, 2))
    store.values.sum().backward()
    assert torch.equal(values.grad, torch.ones_like(values))


def test_select_batch_repeats_and_reorders():
    keys = torch.arange(2.0).view(2, 1, 1, 1).expand(2, 3, 4, 5)
    chosen = PairStore.of(keys, keys).append(*(torch.zeros(2, 3, 1, 5),) * 2).select_batch(torch.tensor([1, 1, 0]))
    assert chosen.keys[:, 0, 0, 0].tolist() == [1, 1, 0]
    assert chosen.length == 5


def test_a_store_made_in_inference_mode_can_be_continued_outside():
    with torch.inference_mode():
        store = PairStore.of(*pairs(1, 0)).append(*pairs(1, 1))
    longer = store.append(*pairs(1, 2)).append(*pairs(1, 3))
    assert longer.keys[0, 0, :, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("part", ["value_extractor", "bandwidth", "output"])
@pytest.mark.parametrize("make", [mosaic, mosaic_v2])
def test_a_part_of_a_model_is_trained_through_a_state(make, part):
    """Its keys have no gradient then, and the gradients are still those of a training of all."""
    model, ids = make(), torch.randint(20, (1, 30), generator=torch.Generator().manual_seed(1))

    def gradients():
        state, total = None, 0.0
        for ids_of_part in ids.split(3, dim=1):
            logits, state = read_on(model, ids_of_part, state)
            total = total + logits.sin().sum()
        chosen = [p for name, p in model.named_parameters() if part in name]
        return torch.autograd.grad(total, chosen)

    expected = gradients()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(part in name)
    for actual, wanted in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=0, atol=1e-9)
