"""Training with weights, gradients and optimizer state spread over processes (FSDP2), on GPUs and CPUs alike.

Accelerate shards on accelerators only; PyTorch's `fully_shard` works on gloo as well, and needs little around it. What
is written to disk is whole: checkpoints have the format of a single process and resume on any number of processes.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from tessera.training.trainer import RecipeTrainer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
OPTIMIZER, SCHEDULER, WEIGHTS = "optimizer.pt", "scheduler.pt", "model.safetensors"


def shard(model: "PreTrainedModel", device: torch.device) -> None:
    """Spread `model` over all processes, in place: each layer by itself, then what is left."""
    names = set(model._no_split_modules or ())
    model.to(device)
    for module in [module for module in model.modules() if type(module).__name__ in names]:
        fully_shard(module)
    fully_shard(model)


class ShardedTrainer(RecipeTrainer):
    """`RecipeTrainer` over a model that `shard` has spread; the order of sequences and the metrics are the same."""

    def __init__(self, model: "PreTrainedModel", recipe, run: Path, arguments, *rest: Any) -> None:
        shard(model, arguments.device)
        super().__init__(model, recipe, run, arguments, *rest)
        # Mixed precision and compilation, but no replication (DDP): the shards reduce their own gradients.
        self.accelerator.prepare_model = partial(self.accelerator.prepare_model, evaluation_mode=True)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Gather the weights (all processes take part), and write them as one model."""
        weights = get_model_state_dict(self.model, options=WHOLE)
        if self.args.should_save:
            once = [name for name, _ in (*self.model.named_parameters(), *self.model.named_buffers())]
            self._save(output_dir, state_dict={name: weights[name] for name in once if name in weights})

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        state = _gathered(self.optimizer.state_dict())
        if self.args.should_save:
            torch.save(state, Path(output_dir) / OPTIMIZER)
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        weights = load_file(Path(resume_from_checkpoint) / WEIGHTS)
        options = StateDictOptions(full_state_dict=True, strict=False)  # a tied output layer is stored once
        set_model_state_dict(self.model, weights, options=options)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        state = torch.load(Path(checkpoint) / OPTIMIZER, map_location="cpu", weights_only=True)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        for index, entries in state["state"].items():
            state["state"][index] = {name: _spread(value, parameters[index]) for name, value in entries.items()}
        self.optimizer.load_state_dict(state)
        self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / SCHEDULER, weights_only=True))


def _gathered(value: Any) -> Any:
    """A state dictionary with every spread tensor made whole, on the CPU; all processes take part."""
    if isinstance(value, DTensor):
        return value.full_tensor().cpu()
    if isinstance(value, dict):
        return {key: _gathered(item) for key, item in value.items()}
    return [_gathered(item) for item in value] if isinstance(value, list) else value


def _spread(value: Any, parameter: Tensor) -> Any:
    """A whole tensor of an optimizer's state, spread as its parameter is; step counts stay."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape or not isinstance(parameter, DTensor):
        return value
    return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)
