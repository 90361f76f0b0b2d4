"""A mistake in a call, in one sentence: which argument is not what its annotation says.

Nothing is checked before a call, and a call that succeeds costs nothing. Where one fails in some other way than by a
`TesseraError`, its arguments are compared with the annotations, in jaxtyping's notation (`tessera.base.shapes`).
"""

import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from tessera.base.errors import TesseraError
from tessera.base.shapes import array_of

Function = TypeVar("Function", bound=Callable)
OBSCURE = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
KINDS = {"Float": "a tensor of floating-point numbers", "Int": "a tensor of integers", "Bool": "a tensor of booleans"}


def explains_mistakes(function: Function) -> Function:
    """Decorate a function or a method of the public interface: wrong arguments are refused by name."""

    @wraps(function)
    def called(*values: Any, **keywords: Any) -> Any:
        if torch.compiler.is_compiling():
            return function(*values, **keywords)
        try:
            return function(*values, **keywords)
        except TesseraError:
            raise
        except OBSCURE as error:
            mistake = _mistake(function, values, keywords)
            if mistake is None:
                raise
            raise TesseraError(mistake) from error

    return called  # type: ignore[return-value]


def checks_arguments(function: Function) -> Function:
    """The same, before each call: of a function that keeps its arguments for later."""

    @wraps(function)
    def called(*values: Any, **keywords: Any) -> Any:
        mistake = _mistake(function, values, keywords)
        if mistake is not None:
            raise TesseraError(mistake)
        return function(*values, **keywords)

    return called  # type: ignore[return-value]


def explain_all(namespace: dict[str, Any], names: Iterable[str]) -> None:
    """Decorate so the public functions of a module, and the public methods of its classes."""
    for name in names:
        value = namespace[name]
        if isinstance(value, types.FunctionType):
            namespace[name] = explained = explains_mistakes(value)
            setattr(sys.modules[value.__module__], name, explained)  # one object, whatever it is imported from
        elif isinstance(value, type):
            for method, body in list(vars(value).items()):
                inner = getattr(body, "__func__", body)
                if isinstance(inner, types.FunctionType) and (method == "__init__" or not method.startswith("_")):
                    explained = explains_mistakes(inner)
                    setattr(value, method, explained if inner is body else type(body)(explained))


def _mistake(function: Callable, values: tuple, keywords: dict[str, Any]) -> str | None:
    """What is wrong with the arguments; None: nothing that the annotations tell."""
    where = re.sub(r"\.(forward|__init__|__call__)$", "", function.__qualname__)
    try:
        bound = inspect.signature(function).bind(*values, **keywords).arguments
    except TypeError as error:
        return f"{where}: the arguments must be those of its signature; {error}."
    sizes: dict[str, int | tuple[int, ...]] = {}
    for name, value in bound.items():
        hint = _resolved(function.__annotations__.get(name, Any), function)
        if hint is typing.Self:
            hint = type(next(iter(bound.values())))
        if any(_fits(option, value, sizes) for option in _options(hint)):
            continue
        expected = " or ".join(dict.fromkeys(map(_described, _options(hint))))
        return f"{where}: {name} must be {expected}; got {_shown(value)}."
    return None


def _resolved(hint: Any, function: Callable) -> Any:
    """An annotation that is a string, of names that its module imports for type checkers alone."""
    if not isinstance(hint, str):
        return hint
    import transformers

    names = {**vars(torch), **{name: getattr(transformers, name) for name in re.findall(r"PreTrained\w+", hint)}}
    try:
        return eval(hint, {**names, "torch": torch, **inspect.unwrap(function).__globals__})  # our own source
    except (NameError, TypeError, AttributeError):
        return Any


def _options(hint: Any) -> list[Any]:
    if isinstance(hint, TypeVar) and hint.__bound__ is not None:
        hint = hint.__bound__
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return [option for part in typing.get_args(hint) for option in _options(part)] if is_union else [hint]


def _fits(hint: Any, value: Any, sizes: dict) -> bool:
    array = array_of(hint)
    if array is not None:
        return isinstance(value, Tensor) and _is_of(array[0], value) and _has_shape(array[1], value, sizes)
    if hint is None or hint is type(None):
        return value is None
    if hint is Any:
        return True
    kind = typing.get_origin(hint) or hint
    if getattr(kind, "_is_protocol", False):
        return all(hasattr(value, name) for name in vars(kind) if not name.startswith("_"))
    if not isinstance(kind, type):
        return True  # nothing that could be looked at
    if kind in (int, float):
        return isinstance(value, int | kind | torch.SymInt) and not isinstance(value, bool)
    if not isinstance(value, kind) or (kind is Iterable and isinstance(value, Tensor)):
        return False
    if not (isinstance(value, list) and typing.get_args(hint)):
        return True
    options = _options(typing.get_args(hint)[0])
    return all(any(_fits(option, item, {}) for option in options) for item in value)


def _is_of(kind: str, tensor: Tensor) -> bool:
    if kind == "Float":
        return tensor.is_floating_point()
    if kind == "Bool":
        return tensor.dtype == torch.bool
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def _has_shape(notation: str, tensor: Tensor, sizes: dict) -> bool:
    """Whether the tensor has these dimensions, of which those with a name have one size in one call."""
    names, shape = notation.split(), tuple(tensor.shape)
    first = next((index for index, name in enumerate(names) if name == "..." or "*" in name), None)
    if first is not None and len(shape) >= len(names) - 1:  # a name for any number of dimensions
        name = names.pop(first)
        end = first + len(shape) - len(names)
        middle, shape = shape[first:end], shape[:first] + shape[end:]
        if name != "..." and "#" not in name and sizes.setdefault(name, middle) != middle:
            return False
    return len(names) == len(shape) and all(_is_size(*pair, sizes) for pair in zip(names, shape))


def _is_size(name: str, size: int, sizes: dict) -> bool:
    if name.isdigit():
        return size == int(name)
    if not name.isidentifier():
        return name[0] != "#" or size == 1 or sizes.setdefault(name[1:], size) == size  # "T-1" says nothing here
    return sizes.setdefault(name, size) == size


def _described(hint: Any) -> str:
    array = array_of(hint)
    if array is not None:
        notation = ", ".join(array[1].replace("#", "").split())
        return KINDS[array[0]] + ("" if notation in ("", "...", "*shape") else f" ({notation})")
    if hint is None or hint is type(None):
        return "None"
    names = {float: "a number", int: "an integer", str: "a string", bool: "True or False", Tensor: "a tensor"}
    return names.get(hint, getattr(hint, "__name__", str(hint)))


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    text = repr(value)
    return text if isinstance(value, int | float | str) and len(text) < 40 else type(value).__name__
