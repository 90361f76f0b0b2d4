"""What operators of Triton need, without triton: whether a device runs them, and memory for their results."""

import importlib.util
import os

import torch
from torch import Tensor

from tessera.base.devices import is_gpu, is_imagined
from tessera.base.shapes import Float

INSTALLED = importlib.util.find_spec("triton") is not None


def unsupported_device(x: Tensor) -> str | None:
    """Why Triton kernels cannot work on `x`, or None: they need CUDA, or the interpreter for tensors on the CPU."""
    if torch.autograd.forward_ad._current_level >= 0:  # PyTorch would take their derivative to be 0, without a word
        return "the Triton kernels have no forward-mode derivative"
    if not is_gpu(x) and os.environ.get("TRITON_INTERPRET") != "1":
        return f"Triton kernels need a CUDA device (or TRITON_INTERPRET=1 for tests on the CPU); got {x.device}"
    return None if INSTALLED or is_imagined() else "triton is not installed"


def interleaved(like: Float[Tensor, "B H T _"], width: int) -> Float[Tensor, "B H T W"]:
    """An unwritten (B, H, T, width) tensor in memory order (B, T, H, width), so that heads merge without a copy."""
    batch, heads, rows = like.shape[:3]
    return torch.empty(batch, rows, heads, width, dtype=like.dtype, device=like.device).transpose(1, 2)
