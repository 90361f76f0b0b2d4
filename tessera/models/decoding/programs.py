"""Programs: a function of tensors, exported, compiled to a file and found again by every later process.

A file is named by what its machine code depends on: the sources of this package, PyTorch, the processor, the number of
threads and what the caller says. Weights are arguments of a program, so that all layers and all trainings share it.
"""

import hashlib
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.export import Dim

from tessera.base.errors import TesseraError, expect, first_line
from tessera.base.files import write_atomically, writing
from tessera.models.decoding.weights import RowProducts

STEP = 64  # pairs are read in multiples of this, those that are not there with weight 0
OPTIONS = {"aot_inductor.compile_wrapper_opt_level": "O0"}  # what calls the kernels: quick to compile, and no slower


class Program(nn.Module):
    """`function(*arguments)` of pytrees of tensors, without a gradient."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any) -> Any:
        """Products of one row with a matrix are written as sums, which read the matrix as fast as memory gives it."""
        with RowProducts():
            return self.function(*arguments)


def load(
    what: str, settings: tuple[Any, ...], function: Callable[..., Any], arguments: tuple, sizes: tuple
) -> Callable[[list[Tensor]], list[Tensor]]:
    """The compiled `function`, made if no earlier process has; it takes all tensors of `arguments` in one list.

    Args:
        what: what is compiled, for people. settings: what `function` depends on beyond its arguments' shapes.
        arguments: examples. sizes: for each, its dimensions that may have any size, as for `torch.export.export`.
    Raises:
        TesseraError: no C++ compiler, or none that works; a file that somebody else may have written.
    """
    shapes = [(tuple(leaf.shape), str(leaf.dtype)) for leaf in torch.utils._pytree.tree_leaves(arguments)]
    key = (what, settings, shapes, sizes, _surroundings(), torch.get_num_threads())
    path = folder() / f"{hashlib.sha256(repr(key).encode()).hexdigest()[:24]}.pt2"
    is_found = path.exists()
    if not is_found:
        _compile(what, function, arguments, sizes, path)
    expect_own(path)
    with warnings.catch_warnings(action="ignore"):  # PyTorch's about its own internals
        try:
            return torch._inductor.aoti_load_package(str(path)).loader.boxed_run
        except RuntimeError as error:
            path.unlink()
            reason, where = first_line(error)[:200], tempfile.gettempdir()
    # A damaged file is made anew; a new one is not damaged.
    expect(is_found, "compile_decoding", f"{where} (or TMPDIR)", "be a folder that programs run from", reason)
    return load(what, settings, function, arguments, sizes)


def open_room(keys: Tensor, values: Tensor, index: int) -> tuple[list[Tensor], list[Any]]:
    """An example of buffers like `keys` and `values`, (B, H, room, width), as `load` takes it, and its sizes.

    Behind them comes a tensor of as many rows as are read, whose size is all that a program can be told of, and the
    place (1,) of the next pair. The `index` of several in one program makes sizes that nothing takes for equal.
    """
    room, count = 40 * index + 201, 40 * index + 79
    keys, values = (x.new_zeros(*x.shape[:2], room, x.shape[3]) for x in (keys, values))
    sizes = [{2: Dim.DYNAMIC}, {2: Dim.DYNAMIC}, {0: Dim.DYNAMIC}, None]
    return [keys, values, torch.empty(count, 0), torch.tensor([0])], sizes


def rows_to_read(length: int, room: int) -> Tensor:
    """That tensor for `length` pairs and one more: a multiple of STEP, if there is so much room."""
    return torch.empty(min(-(-(length + 1) // STEP) * STEP, room), 0)


def first_rows(buffer: Tensor, window: Tensor) -> Tensor:
    """In a program: as many of `buffer` (B, H, room, width) as that tensor has rows."""
    count = window.shape[0]
    torch._check(count <= buffer.shape[2])
    return buffer[:, :, :count]


def folder() -> Path:
    """Where programs are kept: $TESSERA_CACHE/decoding, else ~/.cache/tessera/decoding."""
    cache = os.environ.get("TESSERA_CACHE")
    base = Path(cache) if cache else Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "tessera"
    return base / "decoding"


def expect_own(path: Path) -> None:
    """A program is code that is run: only this user may write it, and the folder that it lies in."""
    for item in (path.parent, path):
        status = item.stat()
        is_own = not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & 0o022)
        advice = "Delete it, or name another folder in TESSERA_CACHE."
        expect(is_own, "compile_decoding", str(item), "be writable by you alone", oct(status.st_mode & 0o777), advice)


def _compile(what: str, function: Callable[..., Any], arguments: tuple, sizes: tuple, path: Path) -> None:
    print(f"Compiling {what}, once for this machine ...", end="", file=sys.stderr, flush=True)
    began = time.perf_counter()
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with warnings.catch_warnings(action="ignore"), torch.no_grad(), tempfile.TemporaryDirectory() as scratch:
            exported = torch.export.export(Program(function), arguments, dynamic_shapes=(sizes,))
            made = torch._inductor.aoti_compile_and_package(
                exported, package_path=f"{scratch}/program.pt2", inductor_configs=OPTIONS
            )
            with writing(path):
                write_atomically(path, lambda draft: shutil.copyfile(made, draft))
                path.chmod(0o600)
    except torch._inductor.exc.InductorError as error:
        reason = str(error).strip().splitlines()[0]
        raise TesseraError(f"compile_decoding: needs a C++ compiler that PyTorch can call; got: {reason}") from error
    print(f" {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)


@cache
def _surroundings() -> str:
    """A digest of everything outside the caller that machine code depends on."""
    digest = hashlib.sha256(f"{torch.__version__} {transformers.__version__} {OPTIONS}".encode())
    digest.update(torch.backends.cpu.get_cpu_capability().encode())
    package = Path(__file__).parents[2]
    for room in ("base", "kernels", "ops", "layers", "recall", "memories", "models"):
        for path in sorted((package / room).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
