"""Whether Triton kernels can run on a tensor's device."""

import importlib.util
import os

import torch
from torch import Tensor

from tessera.base.devices import is_gpu, is_imagined

INSTALLED = importlib.util.find_spec("triton") is not None


def unsupported_device(x: Tensor) -> str | None:
    """Why Triton kernels cannot work on `x`, or None: they need CUDA, or the interpreter for tensors on the CPU."""
    if torch.autograd.forward_ad._current_level >= 0:  # PyTorch would take their derivative to be 0, without a word
        return "the Triton kernels have no forward-mode derivative"
    if not is_gpu(x) and os.environ.get("TRITON_INTERPRET") != "1":
        return f"Triton kernels need a CUDA device (or TRITON_INTERPRET=1 for tests on the CPU); got {x.device}"
    return None if INSTALLED or is_imagined() else "triton is not installed"
