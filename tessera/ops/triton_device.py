"""Whether Triton kernels can run on a tensor's device."""

import importlib.util
import os

from torch import Tensor


def refuse_device(x: Tensor) -> str | None:
    """Why Triton kernels cannot work on `x`, or None: they need CUDA, or the interpreter for tensors on the CPU."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if x.is_cuda or (x.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"):
        return None
    return f"Triton kernels need a CUDA device (or TRITON_INTERPRET=1 for tests on the CPU); got {x.device}"
