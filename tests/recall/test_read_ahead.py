"""What a question needs of a file is asked for before it is read."""

import mmap
from itertools import pairwise

import pytest
import torch

import tessera.recall
from tessera.recall import search
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
    read_ahead(rows, which)  # of memory that no file is behind, to no effect
    read_ahead(rows, which[:0])


@pytest.mark.usefixtures("small_blocks")
def test_an_opened_index_asks_for_all_that_it_reads(tmp_path, monkeypatch):
    """An index of two blocks: the codes, keys and places of leaves, and the values of the support."""
    keys, values = near_a_plane(1, 1100, 12), random(1, 1100, 3)
    asked_for = {}
    monkeypatch.setattr(
        search, "read_ahead", lambda rows, which: asked_for.setdefault(rows.data_ptr(), set()).update(which.tolist())
    )
    index = tessera.recall.build(keys, values)
    index.recall(keys[:, 5:6], kernel="sparsemax", slope=300.0)
    assert not asked_for, "an index in memory"
    tessera.recall.save(index, tmp_path / "my.index")
    opened = tessera.recall.open(tmp_path / "my.index")
    answer = opened.recall(keys[:, 5:6], kernel="sparsemax", slope=300.0)
    assert asked_for[opened.pairs.values.data_ptr()] == set(answer.support.of(0, 0)[0].tolist())
    leaves = opened.blocks[0]
    assert {leaves.keys.data_ptr(), leaves.places.data_ptr(), leaves.codes.data_ptr()} <= set(asked_for)
