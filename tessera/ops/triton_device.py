"""Whether Triton kernels can run on a tensor's device, and how precisely they multiply."""

import functools
import importlib.util
import os

import torch
from torch import Tensor


def refuse_device(x: Tensor) -> str | None:
    """Why Triton kernels cannot work on `x`, or None: they need CUDA, or the interpreter for tensors on the CPU."""
    if not x.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return f"Triton kernels need a CUDA device (or TRITON_INTERPRET=1 for tests on the CPU); got {x.device}"
    return None if _installed() else "triton is not installed"


def dot_precision() -> str:
    """Precision of products of float32 tiles: PyTorch's setting; three tf32 products each for its `highest`."""
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None
