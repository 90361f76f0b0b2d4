"""Pairs are appended, deleted, merged, filed, saved and opened: the index is as one that was built of them at once."""

import ctypes
import mmap
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import tessera.recall
from tessera.recall import index_file, search
from tessera.recall import leaves as leaves_module
from tessera.recall.pair_store import PairStore
from tessera.recall.read_ahead import GAP, pieces, read_ahead
from tests.defaults import expect_the_same_with_other_defaults
from tests.recall.test_recall import near_a_plane, random
from tests.refusals import refused

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


def test_the_default_device_and_dtype_make_no_difference(monkeypatch):
    """Blocks are filed one behind the other, and queries answered in parts."""
    keys, values = near_a_plane(2, 700, 8), random(2, 700, 3, seed=9)
    monkeypatch.setattr(search, "SCORES_AT_ONCE", 2 * 700 * 3)

    def recalled():
        answer = tessera.recall.build(keys, values).recall(keys[:, 90:97], kernel="biweight", slope=100.0)
        return answer.output, answer.support.places, answer.support.starts

    expect_the_same_with_other_defaults(recalled)


def test_merged_indices_are_one_of_both():
    keys, values = near_a_plane(2, 700, 8), random(2, 700, 3, seed=9)
    first, second = (tessera.recall.build(keys[:, part], values[:, part]) for part in (slice(300), slice(300, 700)))
    merged = first.delete(torch.tensor([5])).merge(second.delete(torch.tensor([0])))
    built_at_once = tessera.recall.build(keys, values).delete(torch.tensor([5, 300]))
    for queries in (keys[:, 3:9], keys[:, 298:303]):
        ours, theirs = (x.recall(queries, kernel="sparsemax", slope=100.0) for x in (merged, built_at_once))
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


@pytest.mark.parametrize("with_documents", [False, True])
def test_an_index_is_opened_as_it_was_saved(with_documents, tmp_path):
    keys, values, documents = near_a_plane(2, 1100, 12), random(2, 1100, 3), torch.arange(1100) % 3
    index = tessera.recall.build(keys, values, documents if with_documents else None)
    index = index.delete(torch.tensor([5, 700])) if with_documents else index
    tessera.recall.save(index, tmp_path / "my.index")
    opened = tessera.recall.open(tmp_path / "my.index", verify=True)
    asked = {"kernel": "sparsemax", "slope": 100.0}
    asked |= {"query_documents": torch.tensor([0, 1])} if with_documents else {}
    ours, theirs = (each.recall(keys[:, 5:7], **asked) for each in (opened, index))
    torch.testing.assert_close(ours.output, theirs.output, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.certificate.pairs_read, theirs.certificate.pairs_read)
    assert ours.certificate.is_exact
    assert opened.filed == index.filed > 0
    assert opened.kept is index.kept is None or torch.equal(opened.kept, index.kept)
    longer = opened.append(
        keys[:, :600], values[:, :600], torch.zeros(600, dtype=torch.long) if with_documents else None
    )
    assert (len(longer), len(opened)) == (1700, 1100), "what was opened stays as it is"


def test_keys_that_are_their_own_values_are_saved(tmp_path):
    keys = torch.randn(1, 40, 4, generator=torch.Generator().manual_seed(0))
    tessera.recall.save(tessera.recall.build(keys, keys), tmp_path / "a.index")
    opened = tessera.recall.open(tmp_path / "a.index", verify=True)
    assert torch.equal(opened.pairs.keys[0], keys)
    assert torch.equal(opened.pairs.values[0], keys)


def test_files_that_are_no_index_are_refused(tmp_path):
    from safetensors import safe_open
    from safetensors.torch import save_file

    path = tmp_path / "my.index"
    tessera.recall.save(tessera.recall.build(near_a_plane(1, 600, 12), random(1, 600, 3)), path)
    with safe_open(path, framework="pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118

    def refused_file(message, *, tensors=tensors, metadata=metadata, **options):
        save_file(tensors, tmp_path / "other.index", metadata=metadata)
        refused(message, tessera.recall.open, tmp_path / "other.index", **options)

    refused_file("which was changed", tensors=tensors | {"values": tensors["values"] + 1}, verify=True)
    refused_file("must be a saved index", tensors=tensors | {"values": tensors["values"][:, :, 1:].clone()})
    refused_file("must be a saved index", tensors=tensors | {"blocks.0.low": tensors["blocks.0.low"][:, :, 1:].clone()})
    refused_file("must be a saved index", tensors={name: x for name, x in tensors.items() if name != "blocks.0.high"})
    refused_file("must be a saved index", metadata={"format": "pt"})
    refused_file("version 2; got 1. Build", metadata={"tessera_index": '{"version": 1, "filed": 512}'})
    path.write_bytes(path.read_bytes()[:-100])
    refused("must be a saved index", tessera.recall.open, path)
    refused("does not exist", tessera.recall.open, tmp_path / "none.index")


@pytest.mark.parametrize("width", [3, 64, 1000])
def test_pieces_are_whole_pages_that_hold_the_rows(width):
    rows = torch.zeros(4000, width)
    which = torch.randperm(4000, generator=torch.Generator().manual_seed(0))[:40]
    found = pieces(rows, which)
    assert all(address % mmap.PAGESIZE == length % mmap.PAGESIZE == 0 for address, length in found)
    between = [second - sum(first) for first, (second, _) in pairwise(found)]
    assert all(gap >= GAP * mmap.PAGESIZE for gap in between)
    for row in which.tolist():
        start = rows[row].data_ptr()
        assert sum(address <= start and start + 4 * width <= address + length for address, length in found) == 1
    most = 40 * (4 * width + (GAP + 2) * mmap.PAGESIZE)
    assert sum(length for _, length in found) <= most
    assert pieces(rows, torch.arange(4000))[0][1] >= 16_000 * width


def test_the_system_is_asked_for_every_piece(monkeypatch):
    rows, which, calls = torch.zeros(4000, 64), torch.tensor([3900, 10, 2000]), []
    read_ahead(rows, which)  # the system's own call; no file is behind this memory, so to no effect

    class Library:
        def madvise(self, *arguments):
            calls.append(tuple(argument.value for argument in arguments))

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    read_ahead(rows, which[:0])
    assert not calls
    read_ahead(rows, which)
    assert calls == [(*piece, mmap.MADV_WILLNEED) for piece in pieces(rows, which)]
    assert len(calls) == 3


def test_an_opened_index_asks_for_all_that_it_reads(tmp_path, monkeypatch):
    """The bounds of all leaves; of those that a round needs the codes, keys and places; the values of the support.

    Keys and places are asked for by whole leaves in the first round, one by one where codes told which.
    """
    keys, values = near_a_plane(1, 1100, 12), random(1, 1100, 3)
    asked_for = {}  # (where a tensor lies, into how many rows it is divided) -> rows

    def record(rows, which):
        asked_for.setdefault((rows.data_ptr(), len(rows)), set()).update(which.tolist())

    for module in (search, index_file):
        monkeypatch.setattr(module, "read_ahead", record)
    index = tessera.recall.build(keys, values)
    index.recall(keys[:, 5:6], kernel="sparsemax", slope=300.0)
    assert not asked_for, "an index in memory"
    tessera.recall.save(index, tmp_path / "my.index")
    opened = tessera.recall.open(tmp_path / "my.index")
    answer = opened.recall(keys[:, 5:6], kernel="sparsemax", slope=300.0)
    assert asked_for[opened.pairs.values.data_ptr(), 1100] == set(answer.support.of(0, 0)[0].tolist())
    bounds = [part for leaves in opened.blocks for part in (leaves.low, leaves.high)]
    assert all((part.data_ptr(), 1) in asked_for for part in bounds)
    leaves = opened.blocks[0]
    num_leaves, num_keys = leaves.places.shape[1], leaves.places.numel()
    read = [
        (leaves.codes, num_leaves),
        *((part, n) for part in (leaves.keys, leaves.places) for n in (num_leaves, num_keys)),
    ]
    assert {(part.data_ptr(), count) for part, count in read} <= set(asked_for)
