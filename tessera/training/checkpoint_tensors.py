"""The tensors of a checkpoint: whole in two files, or in shards that any number of processes writes and reads.

PyTorch's distributed checkpointing writes the shards in the background, and reads both forms. They are safetensors
files, each of which says where in the whole tensors its own lie; numbers (step counts) are JSON. So there is no index
that would have to be unpickled, and no process ever holds more than its shard of a sharded model.
"""

import itertools
import json
import shutil
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.optim import Optimizer
from tqdm import tqdm

from tessera.base.checkpoints import MANIFEST, latest_complete, verify
from tessera.base.errors import TesseraError, expect
from tessera.base.files import expect_new_folder, new_folder, writing

INDEX = "model.safetensors.index.json"
LARGEST_FILE = 5_000_000_000  # bytes of weights in one file of a merged model
NUMBERS = "training.json"
NOT_MODEL = (NUMBERS, MANIFEST)  # files of a checkpoint that a model does without

SHARDS, WEIGHTS = "shards", "model.safetensors"
WEIGHT, STATE = "model.", "optimizer."  # what the names of tensors in shards begin with
STEP = "step"  # AdamW's count of the updates of a parameter


def is_sharded(checkpoint: Path) -> bool:
    """Whether a checkpoint folder holds shards."""
    return (checkpoint / SHARDS).is_dir()


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and saved buffers, each once, by name."""
    saved = model.state_dict().keys()
    named = itertools.chain(model.named_parameters(), model.named_buffers())
    return {name: tensor.detach() for name, tensor in named if name in saved}


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """What the optimizer keeps in the shape of each parameter: AdamW's two averages."""
    return {
        f"{STATE}{key}.{name}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if key != STEP
    }


def optimizer_steps(model: nn.Module, optimizer: Optimizer) -> dict[str, float]:
    """How many updates each parameter has had, by name."""
    return {
        name: float(optimizer.state[parameter][STEP])
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
    }


def restore_optimizer(checkpoint: Path, model: nn.Module, optimizer: Optimizer, steps: dict[str, float]) -> None:
    """Bring AdamW to where `optimizer_tensors` and `optimizer_steps` of any number of processes say that it was."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if name in steps:
            state = {key: torch.zeros_like(parameter).detach() for key in ("exp_avg", "exp_avg_sq")}
            tensors |= {f"{STATE}{key}.{name}": tensor for key, tensor in state.items()}
            optimizer.state[parameter] = {STEP: torch.tensor(steps[name], dtype=torch.float32), **state}
    read_tensors(checkpoint, tensors)


def prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with names that begin with `prefix`."""
    return {prefix + name: tensor for name, tensor in tensors.items()}


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """A safetensors file, as transformers reads it."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})


class ShardWriter:
    """Writes this process's part of a checkpoint in a thread of its own; one checkpoint at a time."""

    def __init__(self) -> None:
        self._group: Any = None
        self._pending: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, "checkpoint")

    def start(self, folder: Path, tensors: dict[str, Tensor], then: Callable[[], None]) -> None:
        """Copy `tensors` (all take part), write them into `folder` in the background, and call `then` when all have."""
        if self._group is None:  # the threads' messages must not meet those of the training
            self._group = dist.new_group(backend="gloo")
        writer = HuggingFaceStorageWriter(path=str(folder), save_distributed=True)
        written = async_save(tensors, storage_writer=writer, process_group=self._group)
        assert isinstance(written, Future)

        def complete() -> None:
            written.result()
            then()

        self._pending = self._thread.submit(complete)

    def finish(self) -> None:
        """Wait until nothing is being written; raise what went wrong."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except CheckpointException as error:
            raise next(iter(error.failures.values()))[0] from error


def restore_weights(checkpoint: Path, model: nn.Module) -> None:
    """Fill the model's tensors, or this process's shard of them."""
    read_tensors(checkpoint, prefixed(WEIGHT if is_sharded(checkpoint) else "", model_tensors(model)))


def read_tensors(checkpoint: Path, tensors: dict[str, Tensor], alone: bool = False) -> None:
    """Fill `tensors`, or this process's shard of each, from whatever processes wrote the checkpoint.

    Raises `TesseraError`: a tensor that is missing or of another shape.
    """
    reader = HuggingFaceStorageReader(str(checkpoint / SHARDS if is_sharded(checkpoint) else checkpoint))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process reads alone
            load(tensors, storage_reader=reader, no_dist=alone or not dist.is_initialized())
    except CheckpointException as error:
        reason = " ".join(str(next(iter(error.failures.values()))[0]).split())[:200]
        raise TesseraError(f"{checkpoint}: its tensors must be those of this model; got: {reason}.") from error


def merged_model(folder: Path, output: Path, dtype: str) -> tuple[Path, int]:
    """Make a model folder `output` of a sharded checkpoint, or of the latest complete one of a run in `folder`.

    Returns the checkpoint and the number of files of weights. `dtype` is a name such as "float32".
    Raises `TesseraError`: no such checkpoint, a damaged one, or an output that is in use.
    """
    expect_new_folder(output, "convert", "OUTPUT")
    checkpoint = folder
    if not is_sharded(folder):
        latest, passed = latest_complete(folder)
        if latest is None or not is_sharded(latest):
            advice = f" Passed over: {'; '.join(passed)}." if passed else ""
            if (folder / "config.json").is_file() and any((folder / name).is_file() for name in (WEIGHTS, INDEX)):
                advice += " It is a model already, which needs no conversion."
            elif files := sorted(folder.glob("*.index.json")) or sorted(folder.glob("*.safetensors")):
                advice += f" Of published weights give the file: tessera convert {files[0]} {output}."
            raise TesseraError(f"convert: {folder} must be a sharded checkpoint, or a run with one.{advice}")
        checkpoint = latest
    damage = verify(checkpoint)
    if damage is not None:
        raise TesseraError(f"convert: {checkpoint} must be complete; got: {damage}.")
    with writing(output), new_folder(output) as draft:
        for file in checkpoint.iterdir():
            if file.suffix == ".json" and file.name not in NOT_MODEL:
                shutil.copyfile(file, draft / file.name)
        count = merge(checkpoint, draft, getattr(torch, dtype), progress=sys.stderr.isatty())
    return checkpoint, count


def merge(checkpoint: Path, output: Path, dtype: torch.dtype | None = None, progress: bool = False) -> int:
    """Write the weights of a sharded checkpoint as a model's safetensors files into `output`; returns their number.

    One file at a time is held in memory, of at most 5 GB (or one tensor). `dtype`: of the weights; None: as stored.
    """
    stored = HuggingFaceStorageReader(str(checkpoint / SHARDS)).read_metadata().state_dict_metadata
    whole = {
        name: torch.empty(entry.size, dtype=_dtype(entry.properties.dtype, dtype), device="meta")
        for name, entry in sorted(stored.items())
        if name.startswith(WEIGHT) and isinstance(entry, TensorStorageMetadata)
    }
    plan = split_torch_state_dict_into_shards(whole, max_shard_size=LARGEST_FILE)
    files = plan.filename_to_tensors
    with tqdm(total=len(whole), desc="merging", unit=" tensors", disable=not progress) as bar:
        for file_name, file in files.items():
            tensors = {name: torch.empty_like(whole[name], device="cpu") for name in file}
            read_tensors(checkpoint, tensors, alone=True)
            weights = {name.removeprefix(WEIGHT): tensor for name, tensor in tensors.items()}
            bad = next((name for name, tensor in weights.items() if not bool(tensor.isfinite().all())), None)
            expect(bad is None, "convert", bad or "", "be finite", "NaN or infinity", "Take an earlier checkpoint.")
            save_file(weights, output / file_name, metadata={"format": "pt"})
            bar.update(len(file))
    if plan.is_sharded:
        weight_map = {name.removeprefix(WEIGHT): file for name, file in plan.tensor_to_filename.items()}
        index = {"metadata": plan.metadata, "weight_map": weight_map}
        (output / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return len(files)


def _dtype(stored: torch.dtype, wanted: torch.dtype | None) -> torch.dtype:
    return wanted if wanted is not None and stored.is_floating_point else stored
