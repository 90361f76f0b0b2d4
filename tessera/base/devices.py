"""Which device's way an operation takes: that of its tensors, or of a device that is only imagined.

To know what a training will need on a GPU, it is run where there is none, on tensors without values (PyTorch's fake
ones). These say that they are on the CPU, where autograd works without a GPU's driver.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_imagined_type: str | None = None  # a plain name of the module: the compiler cannot read a ContextVar


@contextmanager
def imagined(device_type: str) -> Iterator[None]:
    """Inside, tensors hold no values, and operations do what they would do on a device of `device_type`."""
    global _imagined_type
    before, _imagined_type = _imagined_type, device_type
    try:
        yield
    finally:
        _imagined_type = before


def is_imagined() -> bool:
    """Whether tensors hold no values."""
    return _imagined_type is not None


def device_type(x: Tensor) -> str:
    """ "cpu", "cuda" or another type of device: where `x` is, or is imagined to be."""
    return _imagined_type or x.device.type


def is_gpu(x: Tensor) -> bool:
    """Whether `x` is on a CUDA device, or imagined to be."""
    return x.is_cuda or _imagined_type == "cuda"


def has_values(x: Tensor) -> bool:
    """Whether there are numbers in `x`: not on the meta device, nor where a device is imagined."""
    return not (x.is_meta or is_imagined())


def is_readable(x: Tensor) -> bool:
    """Whether the numbers in `x` can be looked at without a wait: on a CPU, where nothing is compiled or imagined.

    Nor by `torch.func`, whose `vmap` has many in place of one.
    """
    return x.device.type == "cpu" and not (is_imagined() or torch.compiler.is_compiling() or is_transformed())


def is_transformed() -> bool:
    """Whether `torch.func` (vmap, grad, ...) or a forward derivative is at work: autograd functions need rules."""
    forward = torch.autograd.forward_ad._current_level >= 0
    return not torch.compiler.is_compiling() and (forward or torch._C._are_functorch_transforms_active())


def is_frozen(x: Tensor) -> bool:
    """Whether `x` was made in inference mode, and so must not be written or recorded now. The compiler cannot ask."""
    return not torch.compiler.is_compiling() and x.is_inference() and not torch.is_inference_mode_enabled()


def is_exporting() -> bool:
    """Whether an operation is being exported to a program (`torch.export`), which must not depend on lengths.

    PyTorch's own question is also answered with yes inside `torch.compile` up to version 2.11.
    """
    return torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
