"""Checkpoints that are complete or do not exist.

A checkpoint is written into a temporary folder, gets a manifest of its files (sizes and checksums), and is renamed. A
kill at any moment leaves the earlier checkpoints and at most a temporary folder; damage done later is seen by the
manifest. Checksums are CRC-32: they find flipped bits and truncation at about 1 GB/s, but people can forge them.
"""

import json
import os
import shutil
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tessera.base.errors import first_line
from tessera.base.files import remove, sync

FOLDER, TEMPORARY, MANIFEST = "checkpoints", "draft.tmp", "complete.json"
STEM = "checkpoint-"


def describe(folder: Path, files: list[Path]) -> dict[str, list[int]]:
    """`{name: [size, checksum]}` of `files`, which lie in `folder`."""
    return {path.relative_to(folder).as_posix(): [path.stat().st_size, checksum(path)] for path in files}


def verify(folder: Path) -> str | None:
    """What is wrong with a folder that has a manifest, in a few words; None when it is complete."""
    try:
        record = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return f"no readable {MANIFEST}"
    return differences(folder, record)


def differences(folder: Path, record: Any) -> str | None:
    """How the files in `folder` differ from what `describe` recorded, in a few words; None when they do not."""
    if not isinstance(record, dict) or not record:
        return f"no readable {MANIFEST}"
    for name, entry in record.items():
        path = folder / name
        if not (isinstance(entry, list) and len(entry) == 2):
            return f"no readable {MANIFEST}"
        try:
            size = path.stat().st_size
            if size != entry[0]:
                return f"{name} has {size} of {entry[0]} bytes"
            if checksum(path) != entry[1]:
                return f"{name} was changed"
        except FileNotFoundError:
            return f"{name} is missing"
        except (OSError, ValueError) as error:
            return f"{name} cannot be read ({first_line(error)})"
    return None


def publish(temporary: Path, final: Path) -> None:
    """Add the manifest to `temporary` and give it its final name, replacing a damaged checkpoint of that name."""
    files = sorted(path for path in temporary.rglob("*") if path.is_file())
    for path in files:
        sync(path)
    (temporary / MANIFEST).write_text(json.dumps(describe(temporary, files), indent=1) + "\n")
    sync(temporary / MANIFEST)
    remove(final)
    final.parent.mkdir(parents=True, exist_ok=True)
    os.replace(temporary, final)
    sync(final.parent)


def checkpoints(run: Path) -> list[Path]:
    """All checkpoint folders of a run, the latest first, complete or not."""
    folders = [path for path in (run / FOLDER).glob(f"{STEM}*") if path.name.removeprefix(STEM).isdecimal()]
    return sorted(folders, key=step_of, reverse=True)


def step_of(checkpoint: Path) -> int:
    """The optimizer step after which a checkpoint was written."""
    return int(checkpoint.name.removeprefix(STEM))


def latest_complete(run: Path) -> tuple[Path | None, list[str]]:
    """The latest complete checkpoint of a run, and a line for each damaged one that was passed over."""
    passed: list[str] = []
    for checkpoint in checkpoints(run):
        reason = verify(checkpoint)
        if reason is None:
            return checkpoint, passed
        passed.append(f"{checkpoint}: passed over, {reason}")
    return None, passed


def prune(newest: Path, keep: int) -> None:
    """Delete all checkpoints but `newest` and the `keep` - 1 before it: later ones are damaged and were passed over."""
    known = checkpoints(newest.parent.parent)
    place = known.index(newest)
    for checkpoint in known[:place] + known[place + keep :]:
        shutil.rmtree(checkpoint, ignore_errors=True)


def checksum(path: Path) -> int:
    """CRC-32 of a file's bytes."""
    value = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            value = zlib.crc32(block, value)
    return value


def is_among(tensor: Tensor, others: Iterable[Tensor]) -> bool:
    """Whether it is the memory of one of the others too: safetensors stores each memory once."""
    return any(tensor.data_ptr() == other.data_ptr() for other in others)


def tensor_checksum(tensors: Mapping[str, Tensor]) -> int:
    """CRC-32 of names, types, shapes and bytes: about 1 GB/s."""
    value = 0
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.flatten().view(torch.uint8).numpy().data, value)
    return value
