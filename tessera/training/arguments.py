"""A recipe's training section as `transformers.TrainingArguments`."""

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from tessera.base.errors import TesseraError, did_you_mean
from tessera.base.precision import resolve_precision
from tessera.recipes.sections import Recipe, TrainingSection


def training_arguments(recipe: Recipe, run: Path) -> "TrainingArguments":
    """Everything the Trainer needs to know; what to log, evaluate and save when is `schedule.Schedule`'s.

    Raises `TesseraError` for an unknown `training.trainer` key, a value the Trainer refuses, or a batch size that
    the number of processes does not divide.
    """

    section = recipe.training
    known = {field.name for field in fields(TrainingArguments)}
    for key in section.trainer.keys() - known:
        raise TesseraError(f"training.trainer.{key} is not a known key. {did_you_mean(key, known)}")
    processes, has_accelerator = int(os.environ.get("WORLD_SIZE", "1")), torch.accelerator.is_available()
    if section.trainer.get("fsdp") and (processes == 1 or not has_accelerator):
        raise TesseraError("training.trainer.fsdp must be left out here: accelerate shards over several GPUs only.")
    micro, accumulation = batch_shape(section, processes)
    own: dict[str, Any] = {
        "output_dir": str(run),
        "max_steps": section.steps,
        "per_device_train_batch_size": micro,
        "per_device_eval_batch_size": micro,
        "gradient_accumulation_steps": accumulation,
        "learning_rate": section.learning_rate,
        "max_grad_norm": section.clip,
        "bf16": resolve_precision(section.precision) == "bf16",
        "torch_compile": section.compile,
        "use_cpu": not has_accelerator,
        "dataloader_pin_memory": has_accelerator,
        "seed": recipe.seed,
        "logging_strategy": "no",
        "eval_strategy": "no",
        "save_strategy": "no",
        "logging_nan_inf_filter": section.on_nonfinite == "skip",
        "report_to": "none",  # `reporting.reporters` are added when the run's folder is ready
        "run_name": recipe.name,
        "disable_tqdm": True,
        "remove_unused_columns": False,
        "ddp_find_unused_parameters": False,
    }
    try:
        arguments = TrainingArguments(**{**own, **section.trainer})
    except (ValueError, TypeError) as error:
        raise TesseraError(
            f"training: the Trainer refuses this configuration: {' '.join(str(error).split())}"
        ) from error
    if arguments.n_gpu > 1:
        arguments._n_gpu = 1  # one process is one GPU here: several GPUs are used through torchrun, not DataParallel
    return arguments


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
