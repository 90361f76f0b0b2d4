"""Checks the shapes in the library's annotations at every call that returns.

The check follows the call: a mistake that the library refuses is refused in its own words, and what remains are
annotations that do not hold. Calls that are compiled or traced are not checked.
"""

import functools
import inspect
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import FunctionType, ModuleType
from typing import Any, get_args

import torch
from beartype import BeartypeConf
from beartype.door import is_bearable
from jaxtyping import AbstractArray, jaxtyped
from torch import Tensor

TOWER = BeartypeConf(is_pep484_tower=True)  # an integer is a number where a float is asked for
Kind = Any  # a nest of tuples: the types of values, dtypes and shapes of tensors


class ShapeError(AssertionError):
    """A tensor is not what the annotation of its function says."""


def install() -> None:
    """Check all modules of the library that are imported from now on: all."""
    assert "tessera.base.shapes" not in sys.modules, "the library was imported before its checks, and would have none"
    sys.meta_path.insert(0, _Finder())


class _Finder:
    """Finds the library's modules, for a loader that checks them."""

    @staticmethod
    def find_spec(name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name.startswith("tessera.") else None
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        for name, value in list(vars(module).items()):
            if getattr(value, "__module__", None) != module.__name__:
                continue
            if isinstance(value, type):
                _check_methods(value)
            elif isinstance(value, FunctionType):
                setattr(module, name, checked(value))


def _check_methods(cls: type) -> None:
    for name, value in list(vars(cls).items()):
        if isinstance(value, FunctionType):
            setattr(cls, name, checked(value))
        elif isinstance(value, classmethod | staticmethod):
            setattr(cls, name, type(value)(checked(value.__func__)))
        elif isinstance(value, property) and isinstance(value.fget, FunctionType):
            setattr(cls, name, property(checked(value.fget), value.fset, value.fdel, value.__doc__))


def checked(function: Callable) -> Callable:
    """`function`, its arguments and its result compared with their annotations after each call."""
    hints = {name: hint for name, hint in function.__annotations__.items() if _has_shape(hint)}
    if not hints:
        return function
    _CHECKS[function] = _Check(function, hints)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if not torch.compiler.is_compiling():
            _CHECKS[function](args, kwargs, result)
        return result

    return called


class _Check:
    """Compares a call of `function` with `hints`; another one with tensors of the same shapes costs a look."""

    def __init__(self, function: Callable, hints: dict[str, Any]) -> None:
        self.function, self.hints = function, hints
        places = {name: place for place, name in enumerate(inspect.signature(function).parameters)}
        self.arguments = [(name, places[name]) for name in hints if name != "return"]
        self.returns = "return" in hints
        self.passed: set[Kind] = set()
        self.is_mapped = function.__name__ == "__init__"  # by PyTorch's pytrees, with nothing where they return nothing

    def __call__(self, args: tuple, kwargs: dict[str, Any], result: Any) -> None:
        if self.is_mapped and kwargs and all(value is None for value in kwargs.values()):
            return
        count = len(args)
        values = [args[place] if place < count else kwargs.get(name, _ABSENT) for name, place in self.arguments]
        if self.returns:
            values.append(result)
        # What is most often there is looked at here: this is done at every call.
        kinds = tuple([(one.dtype, one.shape) if type(one) is Tensor else _kind(one) for one in values])
        try:
            if kinds in self.passed:
                return
        except TypeError:  # symbolic sizes have no hash: a program is being traced
            return
        with jaxtyped("context"):
            for (name, hint), value in zip(self.hints.items(), values, strict=True):
                if value is not _ABSENT and not is_bearable(value, hint, conf=TOWER):
                    raise ShapeError(f"{self.function.__qualname__}: {name} is not {hint}; got {kinds}")
        self.passed.add(kinds)


_ABSENT = object()
_CHECKS: dict[Callable, _Check] = {}  # not in the closure of what calls them: torch.compile looks into closures


def _has_shape(hint: Any) -> bool:
    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or any(map(_has_shape, get_args(hint)))


def _kind(value: Any) -> Kind:
    """All that an annotation says something about."""
    if isinstance(value, Tensor):
        return value.dtype, value.shape
    return tuple(map(_kind, value)) if isinstance(value, tuple) else type(value)
