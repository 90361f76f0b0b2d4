"""Pairs are appended, deleted, merged and filed: the index is as one of the same pairs that was built at once."""

from dataclasses import replace

import pytest
import torch

import tessera.recall
from tessera.recall import leaves as leaves_module
from tessera.recall.pair_store import PairStore
from tests.recall.test_recall import near_a_plane, random

pytestmark = pytest.mark.usefixtures("small_blocks")


def test_deleted_pairs_are_as_if_they_had_never_been():
    keys, values = near_a_plane(2, 700, 8), random(2, 700, 3, seed=9)
    gone = torch.arange(100, 400)
    stay = torch.cat([torch.arange(100), torch.arange(400, 700)])
    index = tessera.recall.build(keys, values)
    without, never = index.delete(gone), tessera.recall.build(keys[:, stay], values[:, stay])
    queries = keys[:, 90:410:30]
    ours, theirs = (x.recall(queries, kernel="biweight", slope=100.0) for x in (without, never))
    torch.testing.assert_close(ours.output, theirs.output, rtol=0, atol=1e-12)
    assert torch.equal(ours.support.places, stay[theirs.support.places])
    assert len(index.recall(keys[:, 200:201], kernel="biweight", slope=100.0).support.of(0, 0)[0]), "a value"


def test_merged_indices_are_one_of_both():
    keys, values = near_a_plane(2, 700, 8), random(2, 700, 3, seed=9)
    first, second = (tessera.recall.build(keys[:, part], values[:, part]) for part in (slice(300), slice(300, 700)))
    merged = first.delete(torch.tensor([5])).merge(second.delete(torch.tensor([0])))
    whole = tessera.recall.build(keys, values).delete(torch.tensor([5, 300]))
    for queries in (keys[:, 3:9], keys[:, 298:303]):
        ours, theirs = (x.recall(queries, kernel="sparsemax", slope=100.0) for x in (merged, whole))
        torch.testing.assert_close(ours.output, theirs.output, rtol=0, atol=1e-12)
        assert torch.equal(ours.support.places, theirs.support.places)


def test_blocks_stay_few_when_pairs_come_one_by_one():
    index = tessera.recall.build(near_a_plane(1, 1, 6), random(1, 1, 2))
    for step in range(600):
        index = index.append(near_a_plane(1, 1, 6, step), random(1, 1, 2, seed=step))
    assert [len(block) for block in index.blocks] == [512, 64]
    assert len(index) == 601
    at_once = tessera.recall.build(near_a_plane(1, 1700, 6), random(1, 1700, 2))
    assert [len(block) for block in at_once.blocks] == [1536, 160], "all of a size are one"


@pytest.mark.parametrize(
    ("length", "made"), [(1700, 0), (1605, 0), (1540, 0), (1530, 15), (520, 0), (1800, 3), (2048, 1)]
)
def test_another_number_of_the_same_pairs_is_filed_from_what_is_there(length, made, monkeypatch):
    """Fewer pairs, as where a state is taken back, or more: only blocks that begin or end elsewhere are made."""
    keys, values = near_a_plane(2, 2048, 6), random(2, 2048, 2)
    index = tessera.recall.build(keys[:, :1700], values[:, :1700])
    calls, of = [], leaves_module.Leaves.of
    monkeypatch.setattr(leaves_module.Leaves, "of", lambda *args: calls.append(1) or of(*args))
    pairs = PairStore.of(keys[None, :, :length], values[None, :, :length])
    other = replace(index, pairs=pairs).with_all_filed()
    assert len(calls) == made
    expected = tessera.recall.build(keys[:, :length], values[:, :length])
    assert [len(block) for block in other.blocks] == [len(block) for block in expected.blocks]
    for name in ("sparsemax", "triweight"):
        ours, theirs = (x.recall(keys[:, 3:300:50], kernel=name, slope=40.0) for x in (other, expected))
        torch.testing.assert_close(ours.output, theirs.output, rtol=0, atol=1e-12)
        assert torch.equal(ours.support.places, theirs.support.places)
