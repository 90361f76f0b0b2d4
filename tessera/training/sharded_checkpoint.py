"""Checkpoints of which every process writes its own part, while it trains on, and which any number of processes reads.

PyTorch's distributed checkpointing writes and reads the parts. They are safetensors files, each of which says where in
the whole tensors its own lie; numbers (learning rates, step counts) are JSON. So there is no index that would have to
be unpickled, and no process ever holds more than its part.
"""

import itertools
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
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
from tessera.base.errors import TesseraError
from tessera.base.files import expect_writable, remove, writing

SHARDS, NUMBERS = "shards", "optimizer.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
WEIGHT, STATE = "model.", "optimizer."  # what the names of a checkpoint's tensors begin with
LARGEST_FILE = 5_000_000_000  # bytes of weights in one file of a merged model


def is_sharded(checkpoint: Path) -> bool:
    """Whether a checkpoint folder holds parts."""
    return (checkpoint / SHARDS).is_dir()


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and saved buffers, each once, by the names that they have in a checkpoint."""
    saved = model.state_dict().keys()
    named = itertools.chain(model.named_parameters(), model.named_buffers())
    return {WEIGHT + name: tensor.detach() for name, tensor in named if name in saved}


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """What the optimizer keeps in the shape of each parameter: AdamW's two averages."""
    return {
        f"{STATE}{key}.{name}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor) and value.shape == parameter.shape
    }


def optimizer_numbers(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Everything else that the optimizer knows, for a JSON file: settings of its groups, step counts."""
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    groups = [{**group, "params": [names[one] for one in group["params"]]} for group in optimizer.param_groups]
    state = {
        names[parameter]: {
            key: float(value) if value.dim() == 0 and value.shape != parameter.shape else None
            for key, value in entries.items()
        }
        for parameter, entries in optimizer.state.items()
    }
    return {"groups": groups, "state": state}


class ShardWriter:
    """Writes this process's part of a checkpoint in a thread of its own; one checkpoint at a time."""

    def __init__(self) -> None:
        self._group: Any = None
        self._pending: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, "checkpoint")

    def start(self, folder: Path, tensors: dict[str, Tensor], then: Callable[[], None]) -> None:
        """Copy `tensors` (all processes take part), then write them into `folder` and call `then` in the background.

        `then` is called when all processes have written their parts.
        """
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


def write_numbers(checkpoint: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """What `optimizer_numbers` says, as a file of the checkpoint."""
    (checkpoint / NUMBERS).write_text(json.dumps(optimizer_numbers(model, optimizer)) + "\n", encoding="utf-8")


def read_weights(checkpoint: Path, model: nn.Module) -> None:
    """Fill the model's tensors, or this process's part of them, from all parts of a checkpoint."""
    _read(checkpoint, model_tensors(model))


def read_optimizer(checkpoint: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Bring the optimizer of `model` (the checkpoint's, on any number of processes) to where it was."""
    numbers = json.loads((checkpoint / NUMBERS).read_text(encoding="utf-8"))
    parameters = dict(model.named_parameters())
    tensors: dict[str, Tensor] = {}
    for name, entries in numbers["state"].items():
        state = optimizer.state[parameters[name]]
        for key, number in entries.items():
            if number is None:
                state[key] = tensors[f"{STATE}{key}.{name}"] = torch.zeros_like(parameters[name]).detach()
            else:
                state[key] = torch.tensor(number, dtype=torch.float32)
    _read(checkpoint, tensors)
    for group, saved in zip(optimizer.param_groups, numbers["groups"]):
        settings = {key: tuple(value) if isinstance(value, list) else value for key, value in saved.items()}
        group.update({key: value for key, value in settings.items() if key != "params"})


def _read(checkpoint: Path, tensors: dict[str, Tensor], alone: bool = False) -> None:
    reader = HuggingFaceStorageReader(str(checkpoint / SHARDS))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process reads alone
            load(tensors, storage_reader=reader, no_dist=alone or not dist.is_initialized())
    except CheckpointException as error:
        cause = next(iter(error.failures.values()))[0]
        reason = " ".join(str(cause).split())[:200]
        raise TesseraError(f"{checkpoint}: its parts must be those of this model; got: {reason}.") from error


def merged_model(folder: Path, output: Path, dtype: str) -> tuple[Path, int]:
    """Make a model folder `output` of a checkpoint in parts, or of the latest complete one of a run in `folder`.

    Returns the checkpoint and the number of files of weights. `dtype` is a name such as "float32".

    Raises:
        TesseraError: no such checkpoint, a damaged one, or an output that is in use.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise TesseraError(f"{output}: already exists and is not an empty folder. Choose another output.")
    checkpoint = folder
    if not is_sharded(folder):
        latest, passed = latest_complete(folder)
        if latest is None or not is_sharded(latest):
            damaged = f" Passed over: {'; '.join(passed)}." if passed else ""
            raise TesseraError(f"convert: {folder} must be a checkpoint in parts, or a run with one.{damaged}")
        checkpoint = latest
    damage = verify(checkpoint)
    if damage is not None:
        raise TesseraError(f"convert: {checkpoint} must be complete; got: {damage}.")
    expect_writable(output / "config.json", "convert", "OUTPUT")
    temporary = output.with_name(f"{output.name}.{os.getpid()}.tmp")
    with writing(output):
        try:
            temporary.mkdir(parents=True)
            for file in checkpoint.iterdir():
                if file.suffix == ".json" and file.name not in (NUMBERS, MANIFEST, "trainer_state.json"):
                    shutil.copyfile(file, temporary / file.name)
            count = merge(checkpoint, temporary, getattr(torch, dtype), progress=True)
            os.replace(temporary, output)  # takes the place of an empty folder
        finally:
            remove(temporary)
    return checkpoint, count


def merge(checkpoint: Path, output: Path, dtype: torch.dtype | None = None, progress: bool = False) -> int:
    """Write the weights of a checkpoint in parts as a model's safetensors files into `output`; returns their number.

    One file at a time is held in memory, of at most 5 GB (or one tensor). `dtype`: of the weights; None: as stored.
    """
    stored = HuggingFaceStorageReader(str(checkpoint / SHARDS)).read_metadata().state_dict_metadata
    sizes = {
        name: one
        for name, one in sorted(stored.items())
        if name.startswith(WEIGHT) and isinstance(one, TensorStorageMetadata)
    }
    files = list(_files(sizes, dtype))
    weight_map: dict[str, str] = {}
    total = 0
    names = [name for file in files for name in file]
    with tqdm(total=len(names), desc="merging", unit=" tensors", disable=not progress) as bar:
        for number, file in enumerate(files, start=1):
            tensors = {name: torch.empty(sizes[name].size, dtype=sizes[name].properties.dtype) for name in file}
            _read(checkpoint, tensors, alone=True)
            weights = {name.removeprefix(WEIGHT): _cast(tensor, dtype) for name, tensor in tensors.items()}
            place = WEIGHTS if len(files) == 1 else f"model-{number:05d}-of-{len(files):05d}.safetensors"
            save_file(weights, output / place, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(weights, place)
            total += sum(tensor.nbytes for tensor in weights.values())
            bar.update(len(file))
    if len(files) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (output / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return len(files)


def _files(sizes: dict[str, Any], dtype: torch.dtype | None) -> Iterator[list[str]]:
    """The names of the tensors of each file."""
    names: list[str] = []
    filled = 0
    for name, stored in sizes.items():
        kind = stored.properties.dtype
        size = stored.size.numel() * (dtype if dtype is not None and kind.is_floating_point else kind).itemsize
        if names and filled + size > LARGEST_FILE:
            yield names
            names, filled = [], 0
        names.append(name)
        filled += size
    yield names


def _cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    return tensor if dtype is None or not tensor.is_floating_point() else tensor.to(dtype)
