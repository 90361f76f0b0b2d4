"""A store of pairs is a value: appending to it leaves it, and every other store, as they were."""

import pytest
import torch

from tessera.recall.pair_store import PairStore
from tests.models.contract import CASES, read_in_parts, tokens


def pairs(count, value):
    return torch.full((2, 3, count, 4), float(value)), torch.full((2, 3, count, 5), -float(value))


def test_two_continuations_of_one_store_do_not_meet():
    base = PairStore.of(*pairs(1, 0)).append(*pairs(1, 1))
    first = base.append(*pairs(1, 2))
    second = base.append(*pairs(1, 3))
    third = first.append(*pairs(1, 4))
    assert base.keys[0, 0, :, 0].tolist() == [0, 1]
    assert first.keys[0, 0, :, 0].tolist() == [0, 1, 2]
    assert second.keys[0, 0, :, 0].tolist() == [0, 1, 3]
    assert third.keys[0, 0, :, 0].tolist() == [0, 1, 2, 4]


def test_appending_while_another_thread_appends(monkeypatch):
    """Each has its own pairs: the places are taken before they are written."""
    base, with_room, other = PairStore.of(*pairs(1, 0)).append(*pairs(1, 1)), PairStore.with_room, []

    def interrupted(self, end):
        taken = with_room(self, end)
        if not other:
            other.append(None)
            other[0] = base.append(*pairs(2, 3))
        return taken

    monkeypatch.setattr(PairStore, "with_room", interrupted)
    first = base.append(*pairs(2, 2))
    assert first.keys[0, 0, :, 0].tolist() == [0, 1, 2, 2]
    assert other[0].keys[0, 0, :, 0].tolist() == [0, 1, 3, 3]
    assert other[0].append(*pairs(1, 4)).values[0, 0, :, 0].tolist() == [0, -1, -3, -3, -4]


def test_appending_mostly_writes_in_place():
    store = PairStore.of(*pairs(1, 0)).append(*pairs(1, 1))
    assert store.append(*pairs(1, 2)).key_buffer.data_ptr() == store.key_buffer.data_ptr()


def test_documents_may_come_later():
    store = PairStore.of(*pairs(2, 0)).append(*pairs(1, 1), torch.tensor([[1], [-1]]))
    assert store.documents.tolist() == [[0, 0, 1], [0, 0, -1]]
    assert store.append(*pairs(1, 2)).documents.tolist() == [[0, 0, 1, 0], [0, 0, -1, 0]]


@pytest.mark.parametrize("documents", [None, torch.zeros(2, 3, dtype=torch.long)])
def test_the_same_pairs_of_other_documents(documents):
    """They share keys and values with the store, and the places behind these, which one of the two has at a time."""
    store = PairStore.of(*pairs(3, 0), documents).roomy(5)
    other = store.of_documents(torch.tensor([[0, -1, 0]] * 2))
    longer = other.append(*pairs(1, 1), torch.tensor([[0], [0]]))
    assert longer.key_buffer.data_ptr() == store.key_buffer.data_ptr()
    assert longer.documents.tolist() == [[0, -1, 0, 0]] * 2
    assert store.append(*pairs(1, 2), documents if documents is None else documents[:, :1]).keys[0, 0, 3, 0] == 2
    assert longer.keys[0, 0, :, 0].tolist() == [0, 0, 0, 1]
    assert store.known_documents().tolist() == [[0, 0, 0]] * 2
    other.reclaim(longer)
    assert store.append(*pairs(1, 3)).key_buffer.data_ptr() == store.key_buffer.data_ptr()


def test_a_store_made_in_inference_mode_can_be_continued_outside():
    outside = PairStore.of(*pairs(2, 4)).roomy(4)
    with torch.inference_mode():
        store = PairStore.of(*pairs(1, 0)).append(*pairs(1, 1))
        other = outside.of_documents(torch.zeros(2, 2, dtype=torch.long))
    longer = store.append(*pairs(1, 2)).append(*pairs(1, 3))
    assert longer.keys[0, 0, :, 0].tolist() == [0, 1, 2, 3]
    assert other.append(*pairs(1, 5)).documents.tolist() == [[0, 0, 0]] * 2


@pytest.mark.parametrize("part", ["value_extractor", "bandwidth", "output"])
@pytest.mark.parametrize("name", ["v1 published", "v2 gaussian"])
def test_a_part_of_a_model_is_trained_through_a_state(name, part):
    """Its keys have no gradient then, and the gradients are still those of a training of all."""
    model, ids = CASES[name].build(), tokens(1, 30)

    def gradients():
        chosen = [p for name, p in model.named_parameters() if part in name]
        return torch.autograd.grad(read_in_parts(model, ids, 3)[0].sin().sum(), chosen)

    expected = gradients()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(part in name)
    for actual, wanted in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=0, atol=1e-9)
