"""PyTorch's random numbers, left to the caller by code that seeds or draws."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def random_numbers_kept() -> Iterator[None]:
    """As a block or a decorator: behind it the caller's random numbers go on as if nothing had been seeded or drawn."""
    is_used = torch.cuda.is_available() and torch.cuda.is_initialized()
    with torch.random.fork_rng(range(torch.cuda.device_count()) if is_used else ()):
        yield
