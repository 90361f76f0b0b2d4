"""Whether Triton kernels can run on a tensor's device."""

import functools
import importlib.util
import os

from torch import Tensor


def refuse_device(x: Tensor) -> str | None:
    """Why Triton kernels cannot work on `x`, or None: they need CUDA, or the interpreter for tensors on the CPU."""
    if not x.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return f"Triton kernels need a CUDA device (or TRITON_INTERPRET=1 for tests on the CPU); got {x.device}"
    return None if _installed() else "triton is not installed"


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None
