"""Whether Triton kernels can run on a tensor's device."""

import importlib.util
import os

from torch import Tensor

INSTALLED = importlib.util.find_spec("triton") is not None


def refuse_device(x: Tensor) -> str | None:
    """Why Triton kernels cannot work on `x`, or None: they need CUDA, or the interpreter for tensors on the CPU."""
    if not x.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return f"Triton kernels need a CUDA device (or TRITON_INTERPRET=1 for tests on the CPU); got {x.device}"
    return None if INSTALLED else "triton is not installed"
