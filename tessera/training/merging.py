"""One model of a sharded checkpoint, a file at a time."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from tqdm import tqdm

from tessera.base.checkpoints import MANIFEST, latest_complete, verify
from tessera.base.errors import TesseraError, expect
from tessera.base.files import expect_new_folder, new_folder, writing
from tessera.training.checkpoint import NUMBERS
from tessera.training.checkpoint_tensors import SHARDS, WEIGHT, WEIGHTS, is_sharded, read_tensors

INDEX = "model.safetensors.index.json"
LARGEST_FILE = 5_000_000_000  # bytes of weights in one file of a merged model
# Files of a checkpoint that a model does without; the last two are those of earlier releases.
NOT_MODEL = (NUMBERS, MANIFEST, "optimizer.json", "trainer_state.json")


def merged_model(folder: Path, output: Path, dtype: str) -> tuple[Path, int]:
    """Make a model folder `output` of a sharded checkpoint, or of the latest complete one of a run in `folder`.

    Returns the checkpoint and the number of files of weights. `dtype` is a name such as "float32".

    Raises:
        TesseraError: no such checkpoint, a damaged one, one with NaN or infinity, or an output that is in use.
    """
    expect_new_folder(output, "convert", "OUTPUT")
    checkpoint = folder
    if not is_sharded(folder):
        latest, passed = latest_complete(folder)
        if latest is None or not is_sharded(latest):
            damaged = f" Passed over: {'; '.join(passed)}." if passed else ""
            raise TesseraError(f"convert: {folder} must be a sharded checkpoint, or a run with one.{damaged}")
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
    sizes = {
        name: tensor
        for name, tensor in sorted(stored.items())
        if name.startswith(WEIGHT) and isinstance(tensor, TensorStorageMetadata)
    }
    files = list(_files(sizes, dtype))
    weight_map: dict[str, str] = {}
    total = 0
    names = [name for file in files for name in file]
    with tqdm(total=len(names), desc="merging", unit=" tensors", disable=not progress) as bar:
        for number, file in enumerate(files, start=1):
            tensors = {name: torch.empty(sizes[name].size, dtype=sizes[name].properties.dtype) for name in file}
            read_tensors(checkpoint, tensors, alone=True)
            weights = {name.removeprefix(WEIGHT): _cast(tensor, dtype) for name, tensor in tensors.items()}
            bad = next((name for name, tensor in weights.items() if not bool(tensor.isfinite().all())), None)
            expect(bad is None, "convert", bad or "", "be finite", "NaN or infinity", "Take an earlier checkpoint.")
            file_name = WEIGHTS if len(files) == 1 else f"model-{number:05d}-of-{len(files):05d}.safetensors"
            save_file(weights, output / file_name, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(weights, file_name)
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
