"""Weights, gradients and optimizer state spread over processes (FSDP2), on GPUs and CPUs alike.

Accelerate shards on accelerators only; PyTorch's `fully_shard` works on gloo as well.
"""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard


def shard(model: nn.Module, mesh: DeviceMesh | None = None) -> None:
    """Spread `model` over all processes (those of `mesh`), in place: each layer by itself, then what is left."""
    names = set(getattr(model, "_no_split_modules", None) or ())
    for module in [module for module in model.modules() if type(module).__name__ in names]:
        fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
