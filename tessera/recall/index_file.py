"""An index as a file, which is mapped into memory: a question reads the bounds and the leaves that it needs.

A file is safetensors: the pairs, and the leaves of each block. Its metadata says the version, how many pairs are filed,
and the checksum of all tensors, which only `open(..., verify=True)` compares: that reads the whole file.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from tessera.base.checkpoints import is_among, tensor_checksum
from tessera.base.errors import TesseraError, expect, first_line
from tessera.base.files import expect_plain_file, write_atomically, writing
from tessera.recall.index import PairIndex
from tessera.recall.leaves import LEAF, Leaves
from tessera.recall.pair_store import PairStore
from tessera.recall.read_ahead import read_ahead

KIND, THIS_VERSION = "tessera_index", 2


def save(index: PairIndex, path: str | Path) -> None:
    """Write an index, complete or not at all.

    Raises `TesseraError`: a folder that does not exist, or a disk that is full.
    """
    pairs = {"keys": index.pairs.keys, "values": index.pairs.values, "documents": index.pairs.documents}
    tensors = {name: tensor for name, tensor in (pairs | {"kept": index.kept}).items() if tensor is not None}
    for number, leaves in enumerate(index.blocks):
        tensors |= {f"blocks.{number}.{field.name}": getattr(leaves, field.name) for field in fields(leaves)}
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        stored[name] = tensor.clone() if is_among(tensor, stored.values()) else tensor
    described = {"version": THIS_VERSION, "filed": index.filed, "crc32": tensor_checksum(stored)}
    metadata = {KIND: json.dumps(described)}
    with writing(path, "the index"):
        write_atomically(Path(path), lambda temporary: save_file(stored, temporary, metadata=metadata))


def open(path: str | Path, verify: bool = False) -> PairIndex:
    """The index of a file, read from the disk where questions look at it; the file must stay as it is.

    Raises `TesseraError`: no index, one of another version or of sizes that do not agree, or, with `verify`, one that
    was changed.
    """
    expect_plain_file(Path(path), "recall.open", "path")
    try:
        with safe_open(path, framework="pt") as file:
            described = json.loads((file.metadata() or {})[KIND])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        version = described["version"]
        needed, advice = f"be an index of version {THIS_VERSION}", "Build and save it again."
        expect(version == THIS_VERSION, "recall.open", "path", needed, version, advice)
        index = _index(tensors, int(described["filed"]))
    except TesseraError:
        raise
    except Exception as error:  # safetensors raises its own, the system's, and Rust's
        raise TesseraError(
            f"recall.open: path must be a saved index; got {str(path)!r} ({first_line(error)})."
        ) from None
    if verify and tensor_checksum(tensors) != described.get("crc32"):
        raise TesseraError(f"recall.open: path must be an index as it was saved; got {str(path)!r}, which was changed.")
    return index


def _index(tensors: Mapping[str, Tensor], filed: int) -> PairIndex:
    """Raises `ValueError`: tensors that are not of one index."""
    store = PairStore.of(tensors["keys"], tensors["values"], tensors.get("documents"))
    names = [field.name for field in fields(Leaves)]
    count = sum(name.startswith("blocks.") for name in tensors) // len(names)
    blocks = tuple(Leaves(*(tensors[f"blocks.{number}.{name}"] for name in names)) for number in range(count))
    _, heads, length, width = store.keys.shape
    agree = store.values.shape[:3] == (1, heads, length) and sum(map(len, blocks)) == filed <= length
    for leaves in blocks:
        (num_blocks, num_leaves), depth = leaves.longest.shape[1:], leaves.directions.shape[-1]
        shapes = [(num_blocks * num_leaves, LEAF, *rest) for rest in ((width,), (), (depth + 1,))]
        shapes += [(num_blocks, width, depth)]
        shapes += [(num_blocks, depth + 1, num_leaves)] * 2 + [(num_blocks, num_leaves), ()]
        agree &= all(getattr(leaves, name).shape == (heads, *shape) for name, shape in zip(names, shapes))
    if store.documents is not None:
        agree &= store.documents.shape == (1, length)
    kept = tensors.get("kept")
    if not agree or (kept is not None and kept.shape != (length,)):
        raise ValueError("its tensors do not agree")
    for leaves in blocks:
        for bounds in (leaves.low, leaves.high):  # of which every question reads all
            read_ahead(bounds.flatten(1), torch.arange(len(bounds)))
    return PairIndex(store, blocks, filed, kept, is_mapped=True)
