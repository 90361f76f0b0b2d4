"""Weights, gradients and optimizer state spread over processes (FSDP2), on GPUs and CPUs alike.

Accelerate shards on accelerators only; PyTorch's `fully_shard` works on gloo as well.
"""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard


def shard(model: nn.Module, mesh: DeviceMesh | None = None) -> None:
    """Spread `model` over all processes (those of `mesh`), in place: each layer by itself, then what is left.

    Gradients are summed over the processes, as the losses of `training.loop` are shares of a sum.
    """
    names = set(getattr(model, "_no_split_modules", None) or ())
    for module in [module for module in model.modules() if type(module).__name__ in names]:
        fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
