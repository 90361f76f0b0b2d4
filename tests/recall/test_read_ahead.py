"""What a question needs of a file is asked for before it is read."""

import ctypes
import mmap
from itertools import pairwise

import pytest
import torch

import tessera.recall
from tessera.recall import index_file, search
from tessera.recall.read_ahead import GAP, pieces, read_ahead
from tests.recall.test_recall import near_a_plane, random


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


@pytest.mark.usefixtures("small_blocks")
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
