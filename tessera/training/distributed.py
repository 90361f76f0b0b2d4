"""The processes that share a training: those that torchrun or accelerate started, or this one alone."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from tessera.base.errors import TesseraError
from tessera.recipes.sections import TrainingSection
from tessera.training.optimizer import mark, marked


@dataclass(frozen=True)
class Processes:
    """Which process this one is (`rank`), of how many (`count`). The first writes files and speaks for all.

    `waiting`: the group in which they wait for each other; None: that of all their other messages.
    """

    rank: int = 0
    count: int = 1
    waiting: dist.ProcessGroup | None = None

    @property
    def is_first(self) -> bool:
        """Whether this one writes and speaks."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        """Where this one computes: a GPU of its own where there are any."""
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    def shard_rows(self, rows: int) -> tuple[int, int]:
        """The first of this process's rows of a batch, and the one after its last; equal where it has none."""
        return rows * self.rank // self.count, rows * (self.rank + 1) // self.count

    @torch.no_grad()
    def all_reduce(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over all processes, which is the same to the bit in each of them."""
        if self.count == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        dist.all_reduce(flat)
        for tensor, total in zip(tensors, flat.split([tensor.numel() for tensor in tensors])):
            tensor.copy_(total.view_as(tensor))

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes, without gradient."""
        summed = values.detach().clone()
        self.all_reduce([summed])
        return summed

    def any(self, condition: bool) -> bool:
        """Whether it holds in any process."""
        return condition if self.count == 1 else bool(self.total(torch.tensor(float(condition))) > 0)

    def draw_apart(self, *numbers: int) -> None:
        """From here on each of several draws its own dropout masks and delays, which depend on these numbers alone."""
        if self.count > 1:
            drawn = np.random.SeedSequence([*numbers, self.rank]).generate_state(1, np.uint64)
            torch.manual_seed(int(drawn[0]))

    def wait(self) -> None:
        """Until all are here, also where one tokenises for hours or merges a model's files."""
        if self.count > 1:
            dist.barrier(self.waiting)


SINGLE_PROCESS = Processes()
LONGEST_WAIT = timedelta(days=7)  # a message of a step that takes ten minutes (NCCL) or thirty (gloo) is a failure


@contextmanager
def init_processes() -> Iterator[Processes]:
    """The processes of torchrun or accelerate, which can talk to each other as long as the context lasts."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield SINGLE_PROCESS
        return
    has_gpu = torch.cuda.is_available()
    if has_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if has_gpu else "gloo")
    try:
        yield Processes(dist.get_rank(), dist.get_world_size(), dist.new_group(backend="gloo", timeout=LONGEST_WAIT))
    finally:
        dist.destroy_process_group()


def batch_shape(section: TrainingSection, processes: int) -> tuple[int, int]:
    """(sequences per forward pass of a process, forward passes per step), which multiply to the batch size."""
    if section.batch_size % processes:
        raise TesseraError(
            f"training.batch_size must be a multiple of the {processes} processes; got {section.batch_size}."
        )
    share = section.batch_size // processes
    micro = min(section.micro_batch_size or share, share)
    if share % micro:
        raise TesseraError(f"training.micro_batch_size must divide each process's {share} sequences; got {micro}.")
    return micro, share // micro


def micro_batches(section: TrainingSection, processes: Processes) -> list[tuple[int, int]]:
    """This process's rows of a batch, a forward pass at a time: the first, and the one after the last."""
    micro, count = batch_shape(section, processes.count)
    first, _ = processes.shard_rows(section.batch_size)
    return [(first + index * micro, first + (index + 1) * micro) for index in range(count)]


def shard(model: nn.Module, mesh: DeviceMesh | None = None) -> None:
    """Spread `model` over all processes (those of `mesh`), in place: each layer by itself, then what is left."""
    undecayed = marked(model)
    names = set(getattr(model, "_no_split_modules", None) or ())
    for module in [module for module in model.modules() if type(module).__name__ in names]:
        fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    mark(model, undecayed)  # its parameters are new objects
