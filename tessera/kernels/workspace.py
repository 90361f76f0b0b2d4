"""Reused memory for the temporary results of one computation."""

import math

import torch
from torch import Tensor


class Workspace:
    """Buffers that are handed out in turn and taken back all at once.

    A block of scores is used for a few passes of some ten microseconds each; memory that is fresh from the operating
    system costs ten times that in page faults. Callers with tasks of several sizes start with the largest. A workspace
    belongs to one call, not to a module or the process.
    """

    def __init__(self) -> None:
        self._buffers: list[Tensor] = []
        self._taken = 0

    def clear(self) -> None:
        """Take all buffers back: what was handed out may be overwritten from now on."""
        self._taken = 0

    def empty(self, shape: torch.Size | tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """An uninitialised contiguous tensor of `shape`, with the device and, unless given, the type of `like`."""
        dtype, size = dtype or like.dtype, math.prod(shape)
        if self._taken == len(self._buffers):
            self._buffers.append(torch.empty(size, dtype=dtype, device=like.device))
        buffer = self._buffers[self._taken]
        if buffer.numel() < size or buffer.dtype != dtype:
            buffer = self._buffers[self._taken] = torch.empty(size, dtype=dtype, device=like.device)
        self._taken += 1
        return buffer[:size].view(shape)

    def empty_like(self, tensor: Tensor) -> Tensor:
        """`empty` with the shape of `tensor`."""
        return self.empty(tensor.shape, tensor)
