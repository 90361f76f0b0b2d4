"""Kernels, tasks, models and texts from other packages and files: entry points, and `--import` on the command line.

A package announces them in its pyproject.toml:

    [project.entry-points."tessera.kernels"]   # or tessera.tasks, tessera.models, tessera.sources
    epsilon = "my_package.kernels"             # a module whose import registers what it has
"""

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

from tessera.base.errors import TesseraError, first_line

ADVICE = "One of your own must be imported first (on the command line: --import FILE)."


def entry_points(group: str) -> list[EntryPoint]:
    """What installed packages announce under `group`, in order of their names."""
    return sorted(importlib.metadata.entry_points(group=group), key=lambda point: point.name)


def load(point: EntryPoint) -> Any:
    """Import what an entry point names; whatever goes wrong there is a `TesseraError` that names it."""
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # a script may end itself
        raise TesseraError(
            f"plugin {point.name!r} ({point.group}): {point.value} cannot be imported "
            f"({type(error).__name__}: {first_line(error)}). Repair or uninstall its package."
        ) from error


def import_file(name: str) -> ModuleType:
    """Import a Python file by its path, or a module by its dotted name: what `--import` means.

    Raises `TesseraError`: no such file or module, or an error while it is imported.
    """
    path = Path(name)
    if path.suffix != ".py":
        with _one_line(name):
            return importlib.import_module(name)
    if path.stem in sys.modules:
        loaded = getattr(sys.modules[path.stem], "__file__", None)
        if loaded is not None and Path(loaded).resolve() == path.resolve():
            return sys.modules[path.stem]
        raise TesseraError(
            f"--import: {name} must not be called like a module that is loaded already. Rename the file."
        )
    if not path.is_file():
        raise TesseraError(f"--import: {name} must be a Python file or a module's name; there is no such file.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, "a file that ends in .py has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up there
    try:
        with _one_line(name):
            spec.loader.exec_module(module)
    except TesseraError:
        del sys.modules[path.stem]
        raise
    return module


@contextmanager
def _one_line(name: str) -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:  # a script may end itself
        raise TesseraError(
            f"--import: {name} must import without an error; got {type(error).__name__}: {first_line(error)}."
        ) from error
