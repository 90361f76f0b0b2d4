"""A store of pairs is a value: appending to it leaves it, and every other store, as they were."""

import torch

from tessera.recall.pair_store import SMALLEST_CAPACITY, PairStore


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
