"""What models have read, and traces, as files: any nested value of states, caches of transformers, tensors and JSON.

A file is safetensors. Its tensors are mapped into memory and read from the disk when they are looked at. Its metadata
says what they make up, of which version, and the checksums of both: one entry of JSON. Nothing in a file names code:
classes are looked up among the states of this library and the layers of transformers' caches.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import DynamicCache, cache_utils

from tessera.base.checkpoints import is_among, tensor_checksum
from tessera.base.errors import TesseraError, expect, first_line
from tessera.base.files import expect_plain_file, write_atomically
from tessera.base.state import CLASSES, State, first_tensor

KIND, CRC, TRACE = "tessera_memory", "crc32", "trace"
THIS_VERSION = 2
_LAYERS = ("DynamicLayer", "DynamicSlidingWindowLayer", "LinearAttentionLayer", "LinearAttentionAndFullAttentionLayer")
_CACHE_LAYERS = {name: getattr(cache_utils, name) for name in _LAYERS}


def save_values(path: Path, kind: str, values: Mapping[str, Any], finite: bool = False) -> None:
    """Write `values` as a memory of `kind`, complete or not at all.

    Raises `TesseraError`: a value that cannot be stored; with `finite`, a state that holds NaN or infinity.
    """
    tensors: dict[str, Tensor] = {}
    content = _encoded(dict(values), "", tensors)
    if finite:
        # The weight of an average of nothing is 0.
        read = {
            name: x.masked_fill(x == -torch.inf, 0) if name.endswith("log_weight") else x for name, x in tensors.items()
        }
        broken = [name for name, x in read.items() if x.is_floating_point() and not bool(x.isfinite().all())]
        advice = "The text drives this model out of range: use one that was trained on such lengths."
        expect(not broken, "memorize", "the memory", "be finite", "NaN or infinity", advice)
    described = {"kind": kind, "version": THIS_VERSION, CRC: tensor_checksum(tensors), "content": content}
    text = json.dumps(described, separators=(",", ":"))
    metadata = {KIND: f"{zlib.crc32(text.encode())} {text}"}  # one entry: several come in any order
    write_atomically(Path(path), lambda temporary: save_file(tensors, temporary, metadata=metadata))


@dataclass(frozen=True)
class StateFile:
    """A file that was opened: `kind`, and `content` with the names of tensors in place of these (see `values`)."""

    path: Path
    kind: str
    content: dict[str, Any]
    checksum: int

    @classmethod
    def open(cls, path: str | Path, where: str, argument: str = "path", what: str = "memory") -> "StateFile":
        """Look at the description of a file, which is to be a stored `what`, not at its tensors.

        Raises `TesseraError`: no such file (a trace is no memory), one of another version, or one whose description was
        changed.
        """
        if Path(path).exists():
            expect_plain_file(Path(path), where, "path")
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
        except Exception as error:  # safetensors raises its own, the system's, and Rust's
            got = f"{str(path)!r} ({first_line(error)})"
            raise TesseraError(f"{where}: {argument} must be a stored {what}; got {got}.") from None
        expect(KIND in metadata, where, argument, f"be a stored {what}", f"{str(path)!r}, another file")
        checksum, _, text = metadata[KIND].partition(" ")
        this_version, advice = f"be a {what} of version {THIS_VERSION}", "Read the text again."
        expect(text != "", where, argument, this_version, f"{str(path)!r}, of version 1", advice)
        if checksum != str(zlib.crc32(text.encode())):
            raise _changed(f"{where}: {argument}", path)
        try:
            header = json.loads(text)
            version, kind, content, crc = (header[name] for name in ("version", "kind", "content", CRC))
        except (ValueError, TypeError, KeyError, RecursionError) as error:  # made by hand
            raise TesseraError(f"{where}: {argument} must be a stored {what}; got {str(path)!r} ({error}).") from None
        expect(version == THIS_VERSION, where, argument, this_version, f"{str(path)!r}, of version {version}", advice)
        is_it, stored = (kind == TRACE) == (what == TRACE), TRACE if kind == TRACE else "memory"
        expect(is_it, where, argument, f"be a stored {what}", f"{str(path)!r}, a stored {stored}")
        return cls(Path(path), kind, content, crc)

    def tensors(self, device: str | torch.device = "cpu") -> dict[str, Tensor]:
        """All tensors by name, mapped: nothing is read from the disk, or compared, until they are looked at."""
        with safe_open(self.path, framework="pt", device=str(device)) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def verify(self) -> None:
        """Compare the tensors with their checksum: one pass. Raises `TesseraError` where they were changed."""
        if self.checksum != tensor_checksum(self.tensors()):
            raise _changed("load: path", self.path)

    def values(self, device: str | torch.device = "cpu", is_used: bool = True) -> dict[str, Any]:
        """What was saved; `is_used` False: to be looked at alone, unverified and mapped.

        Otherwise it is copied to where PyTorch puts tensors itself: products of the same numbers elsewhere, not at a
        multiple of 64 bytes, differ in their last bits.
        """
        if is_used:
            self.verify()
        try:
            tensors = self.tensors(device)
            if is_used:
                tensors = {name: tensor.clone() for name, tensor in tensors.items()}
            return _decoded(self.content, tensors)
        except TesseraError:
            raise
        except Exception as error:  # a description that fits its checksum and no class: made by hand
            raise TesseraError(f"load: path must be a stored memory; got {str(self.path)!r} ({error}).") from None


def _changed(argument: str, path: str | Path) -> TesseraError:
    return TesseraError(f"{argument} must be a memory as it was stored; got {str(path)!r}, which was changed.")


def _encoded(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """JSON of `value`; its tensors are added to `tensors` under their place in it."""

    def inside(parts: Mapping[Any, Any]) -> dict[str, Any]:
        return {str(key): _encoded(part, f"{name}.{key}".lstrip("."), tensors) for key, part in parts.items()}

    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        tensor = value.detach().cpu().contiguous()
        # A copy where only a part of the storage is meant.
        is_part = tensor.untyped_storage().nbytes() != tensor.nbytes or bool(tensor.dim() and tensor.stride(-1) != 1)
        if is_part or is_among(tensor, tensors.values()):
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        tensors[name] = tensor
        return {"is": "tensor", "of": name}
    if isinstance(value, torch.dtype):
        return {"is": "dtype", "of": str(value).removeprefix("torch.")}
    if isinstance(value, (list, tuple)):
        items = list(inside(dict(enumerate(value))).values())
        return items if isinstance(value, list) else {"is": "tuple", "of": items}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return inside(value)
        return {"is": "numbered", "of": inside(value)}
    if type(value) is DynamicCache:  # MiniMax's holds states beside its layers
        return {"is": "cache", "of": [_encoded_layer(*layer, name, tensors) for layer in enumerate(value.layers)]}
    if is_dataclass(value) and type(value).__name__ in CLASSES:
        parts: dict[str, Any] = {field.name: getattr(value, field.name) for field in fields(value)}
        if isinstance(value, State):  # a store leaves out the room to spare, a state the model that it is of
            parts = {**value.parts(), **({"model": parts["model"]} if "model" in parts else {})}
        return {"is": type(value).__name__, "of": inside(parts)}
    raise TesseraError(f"save: the state must be one of this library or a DynamicCache; got {type(value).__name__}.")


def _encoded_layer(index: int, layer: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    kind = type(layer).__name__
    expect(kind in _CACHE_LAYERS, "save", "layers of the cache", f"be one of {', '.join(_CACHE_LAYERS)}", kind)
    parts = {key: part for key, part in vars(layer).items() if not isinstance(part, torch.device)}
    return {"is": kind, "of": _encoded(parts, f"{name}.{index}", tensors)}


def _decoded(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decoded(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != {"is", "of"}:
        return {key: _decoded(item, tensors) for key, item in value.items()}
    kind = value["is"]
    if kind == "tensor":
        return tensors[value["of"]]
    if kind == "dtype":
        return getattr(torch, value["of"])
    parts = _decoded(value["of"], tensors)
    if kind == "tuple":
        return tuple(parts)
    if kind == "numbered":
        return {int(key): item for key, item in parts.items()}
    if kind == "cache":
        cache = DynamicCache()
        cache.layers = parts
        return cache
    if kind in _CACHE_LAYERS:
        layer = _CACHE_LAYERS[kind].__new__(_CACHE_LAYERS[kind])
        vars(layer).update(parts)
        if "device" not in parts and (tensor := first_tensor(parts)) is not None:
            layer.device = tensor.device
        return layer
    advice = "Import tessera.models first, or the module that defines it."
    expect(kind in CLASSES, "load", "the memory", "be of states that are imported", kind, advice)
    cls = CLASSES[kind]
    if not issubclass(cls, State):
        return cls(**parts)
    model = parts.pop("model", None)
    state: Any = cls.from_parts(parts)
    return state if model is None else replace(state, model=model)
