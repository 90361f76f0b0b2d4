"""Indices of a few hundred pairs, made of many small leaves."""

import pytest

from tessera.recall import candidates, index, index_file, leaves, long_memories, search


@pytest.fixture
def small_blocks(monkeypatch):
    """Leaves of 8 pairs, filed from 32 pairs on, in blocks of 512; rows of more than 8 candidates by their size."""
    for module, name, value in (
        (leaves, "LEAF", 8),
        (search, "LEAF", 8),
        (index_file, "LEAF", 8),
        (candidates, "FEW_PAIRS", 8),
        (search, "FIRST_LEAVES", 2),
        (search, "TELLING_LEAVES", 8),
        (search, "SCANNED_AT_ONCE", 256),
        (index, "BLOCK", 512),
        (index, "SMALL_BLOCK", 32),
        (long_memories, "SMALL_BLOCK", 32),
        (long_memories, "PATIENCE", 0),
    ):
        monkeypatch.setattr(module, name, value)
