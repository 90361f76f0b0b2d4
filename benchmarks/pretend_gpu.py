"""A device that keeps shapes, dtypes and places but no data, so that code for GPUs can be run where there is none.

    with pretend_gpu() as gpu:
        model.to(gpu.device)(ids.to(gpu.device))

Tensors on it are PyTorch's fake ones: arithmetic on one of them and a tensor left on the CPU fails as on a real GPU.
What is read back from it is made up: ones. Each such reading would make a GPU wait; `gpu.waits` counts them by the line
of the library that asked, and `gpu.operators` the library's own operators. Kernels are not launched. It does not see
everything: a CPU tensor indexed by one of the device passes, copies to the device are not counted, and autocast lowers
products and attention but raises nothing to float32 as CUDA's does.

It is registered with PyTorch for good: use it in a process of its own.
"""

import traceback
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import backend_registration
from torch.utils._pytree import tree_leaves

from benchmarks import pretend_attention

NAME = "gpu"
LIBRARY = Path(__file__).parents[1] / "tessera"
LOWERED = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm")
TO_PYTHON = {"item", "tolist", "__bool__", "__float__", "__int__", "__index__", "numpy", "__array__"}


class PretendGPU(TorchFunctionMode):
    """Sends to `fake` whatever is made on or moved to the device, and makes up what is read back."""

    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device(NAME)
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.waits: Counter[str] = Counter()
        self.operators: Counter[str] = Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if str(function).startswith("tessera."):
            self.operators[str(function).split(".")[1]] += 1
        if name == "pin_memory":  # where a real device copies from; it stays on the CPU
            return args[0]
        held = bool(args) and on_device(args[0])
        if held and name == "data_ptr":  # a real device knows it without a wait
            return args[0].untyped_storage()._cdata
        if held and name in TO_PYTHON:
            return getattr(self.read(args[0]), name)(*args[1:])
        if name == "copy_" and not held and len(args) > 1 and on_device(args[1]):
            return function(args[0], self.read(args[1]))
        if held and name == "scaled_dot_product_attention":
            function = pretend_attention.scaled_dot_product_attention
        target = self.target(name, args, kwargs)
        if held and target is not None and target.type == "cpu":
            return function(self.read(args[0]), *args[1:], **kwargs)
        if target is not None and target.type == NAME and not held:
            if function is torch.tensor:  # PyTorch makes it elsewhere and copies
                return self.move(torch.tensor(*args, **{**kwargs, "device": None}))
            if name == "to":
                return self.move(args[0]).to(*args[1:], **kwargs)
            with self.fake:
                return function(*args, **kwargs)
        if any(isinstance(x, FakeTensor) for x in tree_leaves((args, kwargs))):
            with self.fake:
                return function(*args, **kwargs)
        return function(*args, **kwargs)

    def move(self, x: torch.Tensor) -> FakeTensor:
        """A tensor of the CPU on the device."""
        with self.fake:
            return self.fake.from_tensor(x.detach()).to(self.device).requires_grad_(x.requires_grad)

    def target(self, name, args, kwargs) -> torch.device | None:
        """The device that a call names."""
        if name == "cpu":
            return torch.device("cpu")
        named = kwargs.get("device")
        if named is None and name == "to" and len(args) > 1:
            named = args[1].device if isinstance(args[1], torch.Tensor) else args[1]
        if isinstance(named, str | torch.device):
            return torch.device(named)
        return None

    def read(self, held) -> torch.Tensor:
        """What comes back from the device: ones; and the wait is counted."""
        frames = [frame for frame in traceback.extract_stack() if Path(frame.filename).is_relative_to(LIBRARY)]
        self.waits[f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "elsewhere"] += 1
        return torch.ones(held.shape, dtype=held.dtype)


def on_device(x: object) -> bool:
    """Whether it is a tensor there."""
    return isinstance(x, FakeTensor) and x.device.type == NAME


class _Backend(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self):
        return [torch.bfloat16, torch.float16]


def _register() -> None:
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
    torch.Tensor.is_cuda = property(lambda self: self.device.type == NAME)
    nn.Module._apply = _apply
    _KEPT.append(torch.library.Library("_", "IMPL"))
    _KEPT[-1].fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    _KEPT.append(torch.library.Library("aten", "IMPL"))
    for name in LOWERED:
        _KEPT[-1].impl(name, _lowered(getattr(torch.ops.aten, name)), "AutocastPrivateUse1")


_KEPT: list = []  # registrations end with their libraries


def _lowered(operator):
    """The products that run in the autocast's dtype."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def cast(x):
        lower = isinstance(x, torch.Tensor) and x.dtype == torch.float32
        return x.to(torch.get_autocast_dtype(NAME)) if lower else x

    def run(*args, **kwargs):
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return operator(*map(cast, args), **{name: cast(x) for name, x in kwargs.items()})

    return run


def _apply(module: nn.Module, function, recurse: bool = True) -> nn.Module:
    """`Module._apply` by new parameters: PyTorch's own swaps the tensors' insides, which fake ones do not allow."""
    moved: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                if id(parameter) not in moved:
                    moved[id(parameter)] = nn.Parameter(function(parameter.detach()), parameter.requires_grad)
                part._parameters[name] = moved[id(parameter)]
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = function(buffer)
    return module


@contextmanager
def pretend_gpu():
    """A `PretendGPU`; inside, `.device` can be used like any other."""
    if not _KEPT:
        _register()
    with PretendGPU() as gpu:
        yield gpu
