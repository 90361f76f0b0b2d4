"""Plain data (JSON, YAML) to frozen dataclasses and back, with every problem found, not only the first."""

import copy
import dataclasses
import json
import math
import types
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from tessera.base.errors import TesseraError, did_you_mean

MEANING = "meaning"
Report = Callable[[str, str], None]
Problems = list[tuple[str, str]]  # (field, what is wrong with it)
_WORDS = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "null",
    dict: "a mapping",
}


def option(default: Any, meaning: str) -> Any:
    """A dataclass field with a default and a sentence for people; a default that could change is made anew."""
    if isinstance(default, dict | list) or is_dataclass(default):
        return dataclasses.field(default_factory=lambda: copy.deepcopy(default), metadata={MEANING: meaning})
    return dataclasses.field(default=default, metadata={MEANING: meaning})


def broken(instance: Any, *rules: tuple[bool, str, str]) -> Problems:
    """(field, "must {requirement}; got {value}.") for each rule (it holds, field, requirement) that does not hold."""
    problems = []
    for holds, name, requirement in rules:
        if not holds:
            value = getattr(instance, name)
            problems.append((name, f"must {requirement}; got {list(value) if isinstance(value, tuple) else value!r}."))
    return problems


def is_count(value: Any, least: int = 1) -> bool:
    """Whether it is an integer of at least so much, and not True or False."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def to_json(instance: Any) -> Any:
    """A dataclass, or a nest of values, as it comes back from a JSON file: mappings for dataclasses, lists for tuples.

    Numbers that are not finite become None.
    """
    plain = dataclasses.asdict(instance) if is_dataclass(instance) and not isinstance(instance, type) else instance
    return json.loads(json.dumps(plain), parse_constant=lambda name: None)


def from_json(cls: type, mapping: Any, where: str) -> Any:
    """The instance of dataclass `cls` that `to_json` made `mapping` of.

    Raises `TesseraError`: one line per problem: unknown or missing keys, wrong types, impossible values.
    """
    problems: list[str] = []
    instance = read_dataclass(cls, mapping, lambda key, message: problems.append(f"{where}: {key} {message}"))
    if problems:
        raise TesseraError("\n".join(problems))
    return instance


def read_dataclass(cls: type, mapping: Any, report: Report, prefix: str = "") -> Any:
    """An instance of dataclass `cls` from `mapping`; None when it cannot be made.

    Calls `report(key, message)` for each unknown or missing key, value of a wrong type, and each of the `problems()`
    of the finished instance, where it has this method. Nested dataclasses are read from nested mappings, also inside
    lists; keys are dotted.
    """
    if not isinstance(mapping, dict):
        report(prefix.rstrip(".") or "recipe", f"must be a mapping; got {shown(mapping)}.")
        return None
    hints = get_type_hints(cls)
    known = [item.name for item in fields(cls) if item.init]
    for key in mapping:
        if key not in known:
            report(f"{prefix}{key}", f"is not a known key; got {shown(mapping[key])}. {did_you_mean(str(key), known)}")
    values, is_complete = {}, True
    for item in fields(cls):
        if item.name in mapping:
            ok, values[item.name] = _read(hints[item.name], mapping[item.name], report, prefix + item.name)
            is_complete = is_complete and ok
        elif item.default is MISSING and item.default_factory is MISSING:
            report(f"{prefix}{item.name}", f"must be given ({describe(hints[item.name])}); got nothing.")
            is_complete = False
    if not is_complete:
        return None
    instance = cls(**values)
    for name, message in instance.problems() if hasattr(instance, "problems") else ():
        report(f"{prefix}{name}", message)
    return instance


def shown(value: Any) -> str:
    """`value` as an error message shows it: at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def fits(hint: Any, value: Any) -> bool:
    """Is `value` of the type `hint`? A number must be finite, an integer one of 64 bits; true and false are neither."""
    return _convert(hint, value)[0] and not (hint is float and isinstance(value, str))


def _read(hint: Any, value: Any, report: Report, key: str) -> tuple[bool, Any]:
    """(could it be read, the value as that type); reports what is wrong with it."""
    if isinstance(hint, type) and is_dataclass(hint):
        nested = read_dataclass(hint, value, report, key + ".")
        return nested is not None, nested
    options = [option for option in get_args(hint) if option is not type(None)]
    if value is not None and _is_union(hint) and len(options) == 1 and is_dataclass(options[0]):
        return _read(options[0], value, report, key)
    item = _item_class(hint)
    if item is not None and isinstance(value, list | tuple):
        items = [_read(item, entry, report, f"{key}[{index}]") for index, entry in enumerate(value)]
        return all(ok for ok, _ in items), get_origin(hint)(entry for _, entry in items)
    ok, converted = _convert(hint, value)
    if not ok:
        report(key, f"must be {describe(hint)}; got {shown(value)}.")
    return ok, converted


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _item_class(hint: Any) -> type | None:
    """The dataclass that the items of a list, or of a tuple of any length, are of."""
    arguments = get_args(hint)
    is_sequence = get_origin(hint) in (list, tuple) and arguments[1:] in ((), (Ellipsis,))
    return arguments[0] if is_sequence and isinstance(arguments[0], type) and is_dataclass(arguments[0]) else None


def _convert(hint: Any, value: Any) -> tuple[bool, Any]:
    """(does `value` fit the type, the value as that type)."""
    origin, arguments = get_origin(hint), get_args(hint)
    if _is_union(hint):
        results = [_convert(option, value) for option in arguments]
        return next((result for result in results if result[0]), (False, None))
    if origin is tuple:
        if arguments[1:] == (Ellipsis,) and isinstance(value, list | tuple):
            arguments = arguments[:1] * len(value)
        is_as_long = isinstance(value, list | tuple) and len(value) == len(arguments)
        results = [_convert(option, item) for option, item in zip(arguments, value)] if is_as_long else []
        return is_as_long and all(ok for ok, _ in results), tuple(item for _, item in results)
    if origin is list:
        return isinstance(value, list) and all(_convert(arguments[0], item)[0] for item in value), value
    if origin is dict and isinstance(value, dict):
        fitting = {key: _convert(arguments[1], item) for key, item in value.items()}
        return all(ok for ok, _ in fitting.values()), {key: item for key, (_, item) in fitting.items()}
    if hint is float:
        return _number(value)
    if hint is Any:
        return True, value
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63, value
    return isinstance(value, origin or hint), value


def _number(value: Any) -> tuple[bool, Any]:
    """Is it a finite number, or text that is one (PyYAML reads 5e-3 as text), and which?"""
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        return False, None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return False, None
    return math.isfinite(number), number


def describe(hint: Any) -> str:
    """A type in words, as in "an integer or null"."""
    origin, arguments = get_origin(hint), get_args(hint)
    if _is_union(hint):
        return " or ".join(describe(option) for option in arguments)
    if origin is tuple and arguments[1:] != (Ellipsis,):
        return f"a list of {len(arguments)} values"
    if origin in (list, tuple):
        return f"a list of {describe(arguments[0]).removeprefix('a ')}"
    return _WORDS.get(origin or hint, "a mapping")
