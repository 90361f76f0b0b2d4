"""Training with weights, gradients and optimizer state spread over processes (FSDP2), on GPUs and CPUs alike.

Accelerate shards on accelerators only; PyTorch's `fully_shard` works on gloo as well, and needs little around it. Each
process writes its own part of a checkpoint, in the background (`sharded_checkpoint`). Any number of processes resumes
it, and checkpoints of a single process are resumed here.
"""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    set_model_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from tessera.base.checkpoints import FOLDER, TEMPORARY
from tessera.base.files import remove
from tessera.training.sharded_checkpoint import (
    SHARDS,
    ShardWriter,
    is_sharded,
    merge,
    model_tensors,
    optimizer_tensors,
    read_weights,
    write_numbers,
)
from tessera.training.trainer import RecipeTrainer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OPTIMIZER, SCHEDULER, WEIGHTS = "optimizer.pt", "scheduler.pt", "model.safetensors"


def shard(model: "PreTrainedModel", mesh: DeviceMesh | None = None) -> None:
    """Spread `model` over all processes (those of `mesh`), in place: each layer by itself, then what is left."""
    names = set(model._no_split_modules or ())
    for module in [module for module in model.modules() if type(module).__name__ in names]:
        fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)


class ShardedTrainer(RecipeTrainer):
    """`RecipeTrainer` over a model that `shard` has spread; the order of sequences and the metrics are the same."""

    def __init__(self, model: "PreTrainedModel", recipe, run: Path, arguments, *rest: Any) -> None:
        shard(model.to(arguments.device))
        super().__init__(model, recipe, run, arguments, *rest)
        self.writer = ShardWriter()
        self.writing_now: str | None = None  # the checkpoint
        # Mixed precision and compilation, but no replication (DDP): the shards reduce their own gradients.
        self.accelerator.prepare_model = partial(self.accelerator.prepare_model, evaluation_mode=True)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write configuration and tokenizer, and unless a checkpoint is being made, the weights as one model.

        All processes take part in writing their parts; the first then merges these, a file at a time.
        """
        assert output_dir is not None, "the run says where"
        self.model.reshard()  # an evaluation leaves the outermost parameters whole
        output = Path(output_dir)
        if self.args.should_save:
            output.mkdir(parents=True, exist_ok=True)
            self.model.config.save_pretrained(output)
            if self.model.can_generate():
                self.model.generation_config.save_pretrained(output)
            self.processing_class.save_pretrained(output)
        if _internal_call:
            return
        self.accelerator.wait_for_everyone()
        self.writer.start(output / SHARDS, model_tensors(self.model), lambda: None)
        self.writer.finish()
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            merge(output, output)
            remove(output / SHARDS)

    def _save_checkpoint(self, model: Any, trial: Any = None) -> None:
        """Write this process's part in the background; the first process publishes when all have written theirs."""
        self.finish_checkpoint()
        self.model.reshard()
        name = f"checkpoint-{self.state.global_step}"
        with self._writing_checkpoint(name):
            self._draft_checkpoint(model, trial)
            optimizer = self.optimizer.optimizer
            tensors = {**model_tensors(self.model), **optimizer_tensors(self.model, optimizer)}
            draft = self.run / FOLDER / TEMPORARY / name / SHARDS
            self.writer.start(draft, tensors, lambda: self._publish_checkpoint(name))
        self.writing_now = name

    def finish_checkpoint(self) -> None:
        """See `RecipeTrainer`."""
        if self.writing_now is None:
            return
        try:
            with self._writing_checkpoint(self.writing_now):
                self.writer.finish()
        finally:
            self._remove_draft()
        self.writing_now = None
        self.accelerator.wait_for_everyone()

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.args.should_save:
            write_numbers(Path(output_dir), self.model, self.optimizer.optimizer)
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        if is_sharded(Path(resume_from_checkpoint)):
            read_weights(Path(resume_from_checkpoint), self.model)
            return
        weights = load_file(Path(resume_from_checkpoint) / WEIGHTS)
        options = StateDictOptions(full_state_dict=True, strict=False)  # a tied output layer is stored once
        set_model_state_dict(self.model, {**weights}, options=options)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None or is_sharded(Path(checkpoint)):
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        state = torch.load(Path(checkpoint) / OPTIMIZER, map_location="cpu", weights_only=True)
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        for index, entries in state["state"].items():
            state["state"][index] = {name: _spread(value, parameters[index]) for name, value in entries.items()}
        self.optimizer.load_state_dict(state)
        self.lr_scheduler.load_state_dict(torch.load(Path(checkpoint) / SCHEDULER, weights_only=True))


def _spread(value: Any, parameter: Tensor) -> Any:
    """A whole tensor of an optimizer's state, spread as its parameter is; step counts stay."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape or not isinstance(parameter, DTensor):
        return value
    return distribute_tensor(value.to(parameter.device), parameter.device_mesh, parameter.placements)
