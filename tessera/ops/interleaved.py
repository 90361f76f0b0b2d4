"""Results of operations on heads, laid out so that merging the heads costs nothing."""

import torch
from torch import Tensor

from tessera.base.shapes import Float


def interleaved(like: Float[Tensor, "B H T _"], width: int) -> Float[Tensor, "B H T W"]:
    """An unwritten (B, H, T, width) tensor in memory order (B, T, H, width), so that heads merge without a copy."""
    batch, heads, rows = like.shape[:3]
    return torch.empty(batch, rows, heads, width, dtype=like.dtype, device=like.device).transpose(1, 2)
