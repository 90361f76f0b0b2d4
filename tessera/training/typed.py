"""Plain mappings (from YAML) to frozen dataclasses, with every problem found, not only the first."""

import types
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from tessera.errors import did_you_mean

Report = Callable[[str, str], None]
_WORDS = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "null",
    dict: "a mapping",
}


def read_dataclass(cls: type, mapping: Any, report: Report, prefix: str = "") -> Any:
    """An instance of dataclass `cls` from `mapping`; None when it cannot be made.

    Calls `report(key, message)` for each unknown or missing key, value of a wrong type, and each of the
    `problems()` of the finished instance. Nested dataclasses are read from nested mappings; keys are dotted.
    """
    if not isinstance(mapping, dict):
        report(prefix.rstrip(".") or "recipe", f"must be a mapping; got {mapping!r}.")
        return None
    hints = get_type_hints(cls)
    known = [item.name for item in fields(cls)]
    for key in mapping:
        if key not in known:
            report(f"{prefix}{key}", f"is not a known key; got {mapping[key]!r}. {did_you_mean(str(key), known)}")
    values, whole = {}, True
    for item in fields(cls):
        if item.name in mapping:
            ok, values[item.name] = _read(hints[item.name], mapping[item.name], report, prefix + item.name)
            whole = whole and ok
        elif item.default is MISSING and item.default_factory is MISSING:
            report(f"{prefix}{item.name}", f"must be given ({_describe(hints[item.name])}); got nothing.")
            whole = False
    if not whole:
        return None
    instance = cls(**values)
    for name, message in instance.problems():
        report(f"{prefix}{name}", message)
    return instance


def _read(hint: Any, value: Any, report: Report, key: str) -> tuple[bool, Any]:
    if is_dataclass(hint):
        nested = read_dataclass(hint, value, report, key + ".")
        return nested is not None, nested
    ok, converted = _convert(hint, value)
    if not ok:
        report(key, f"must be {_describe(hint)}; got {value!r}.")
    return ok, converted


def _convert(hint: Any, value: Any) -> tuple[bool, Any]:
    """(does `value` fit the type, the value as that type)."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        results = [_convert(option, value) for option in arguments]
        return next((result for result in results if result[0]), (False, None))
    if origin is tuple:
        fits = isinstance(value, list | tuple) and len(value) == len(arguments)
        results = [_convert(option, item) for option, item in zip(arguments, value)] if fits else []
        return fits and all(ok for ok, _ in results), tuple(item for _, item in results)
    if origin is list:
        fits = isinstance(value, list) and all(_convert(arguments[0], item)[0] for item in value)
        return fits, value
    if origin is dict:
        return isinstance(value, dict), value
    if hint is float:
        return _number(value)
    return isinstance(value, hint) and not (hint is int and isinstance(value, bool)), value


def _number(value: Any) -> tuple[bool, Any]:
    if isinstance(value, str):  # YAML 1.1 reads 5e-3 as text
        try:
            return True, float(value)
        except ValueError:
            return False, None
    return isinstance(value, int | float) and not isinstance(value, bool), float(value) if _is_real(value) else None


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float)


def _describe(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(option) for option in arguments)
    if origin is tuple:
        return f"a list of {len(arguments)} values"
    if origin is list:
        return f"a list of {_describe(arguments[0]).removeprefix('a ')}"
    return _WORDS.get(origin or hint, "a mapping")
