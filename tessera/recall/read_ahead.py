"""Telling the system which rows of a mapped file are read next: it fetches all of them at once, not page after page."""

import ctypes
import mmap

import torch
from torch import Tensor

from tessera.base.shapes import Int

GAP = 4  # pages that are fetched too, rather than asked for in two pieces


def read_ahead(rows: Tensor, which: Int[Tensor, " n"]) -> None:
    """Ask for the given rows of a contiguous tensor on the CPU, and wait for none of them."""
    if hasattr(mmap, "MADV_WILLNEED") and which.numel():
        advise = ctypes.CDLL(None).madvise
        for address, length in pieces(rows, which):
            advise(ctypes.c_void_p(address), ctypes.c_size_t(length), ctypes.c_int(mmap.MADV_WILLNEED))


def pieces(rows: Tensor, which: Int[Tensor, " n"]) -> list[tuple[int, int]]:
    """Address and length in bytes of whole pages that hold these rows, of which there are some."""
    row_bytes = rows[0].numel() * rows.element_size()
    starts = rows.data_ptr() + which.sort()[0] * row_bytes
    first, last = starts // mmap.PAGESIZE, (starts + row_bytes - 1) // mmap.PAGESIZE
    begins = torch.ones_like(first, dtype=torch.bool)
    begins[1:] = first[1:] - last[:-1] > GAP
    ends = torch.cat([begins[1:], begins.new_ones(1)])
    lengths = last[ends] + 1 - first[begins]
    return list(zip((first[begins] * mmap.PAGESIZE).tolist(), (lengths * mmap.PAGESIZE).tolist()))
