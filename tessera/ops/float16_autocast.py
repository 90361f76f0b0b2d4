"""Operations that divide by small numbers, under float16's autocast.

A loss is scaled there, by 65,536 at first, and gradients in front of such a division exceed float16's largest number.
These operations, and what feeds them, are computed in float32.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from tessera.base.precision import without_autocast


def is_active(x: Tensor) -> bool:
    """Whether autocast would compute products of `x` in float16."""
    kind = x.device.type
    return torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16


def widened(x: Tensor) -> Tensor:
    """`x`, in float32 under float16's autocast."""
    return x.float() if x.dtype == torch.float16 and is_active(x) else x


def without(x: Tensor) -> AbstractContextManager[None]:
    """Inside, products keep their dtype if autocast would compute those of `x` in float16."""
    return without_autocast(x) if is_active(x) else nullcontext()
