"""Bad values, and bad values put into good inputs at every place that the schemas have."""

import copy
import datetime
import math
from dataclasses import fields, is_dataclass
from random import Random
from typing import Any, get_type_hints

VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 2, 3, 2**31, 2**63, 10**30, -(10**30), -0.0, 0.5, 1e-300, 1e308, math.nan, math.inf,
    -math.inf, "", " ", "x", "5e-3", "nan", "x" * 300, "x" * 5000, "../victim", "a/b", "/", ".", "..", "~", "a\0b",
    "hf://", "hf://no", "no/such/model", "\N{COLLISION SYMBOL}", "\udcff", "false", "[]", "{}", "%s%n", [], [1], [[]],
    ["x", None], [1] * 50, {}, {"a": 1}, {1: 2}, {"type": "gaussian"}, {"model_type": "gpt2"}, b"bytes",
    datetime.date(2020, 2, 30 - 1),
]  # fmt: skip
TEXTS = [str(value) for value in VALUES if not isinstance(value, bytes)] + [
    "a=b", "=", "--", "-", "training.steps=", "training=1", "model.type=", "data.source=[", "seed=-1", "1,2",
    "9" * 5000, "book.txt", "folder", "/dev/full", "/proc/self/mem", "no.txt",
]  # fmt: skip


def paths_of(cls: type, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Where a value can stand in a mapping that is read as dataclass `cls`; nested ones included."""
    hints, places = get_type_hints(cls), []
    for item in fields(cls):
        here = (*prefix, item.name)
        places.append(here)
        if is_dataclass(hints[item.name]):
            places += paths_of(hints[item.name], here)
    return places


def spoiled(mapping: dict[str, Any], places: list[tuple[str, ...]], chance: Random) -> dict[str, Any]:
    """A copy with one to three places set to bad values, and now and then a key that nobody knows."""
    result = copy.deepcopy(mapping)
    for place in chance.sample(places, chance.choice((1, 1, 2, 3))):
        put(result, place, chance.choice(VALUES))
    if chance.random() < 0.1:
        result[chance.choice(["nmae", 3, None, "x" * 300])] = chance.choice(VALUES)
    return result


def put(mapping: dict[str, Any], place: tuple[str, ...], value: Any) -> None:
    """Set a nested entry where the way there is made of mappings."""
    for key in place[:-1]:
        if not isinstance(mapping, dict):
            return
        mapping = mapping.setdefault(key, {})
    if isinstance(mapping, dict):
        mapping[place[-1]] = value


def damaged(content: bytes, chance: Random) -> bytes:
    """A file as a disk, an editor or a person may leave it."""
    kind = chance.randrange(7)
    if kind == 0:
        return content[: chance.randrange(len(content) or 1)]
    if kind == 1:
        return chance.randbytes(chance.randrange(200))
    if kind == 2:
        return chance.choice([b"", b"[]", b"{}", b"null", b"3", b'"x"', b"[1, [2]]", b"\xff\xfe", b"[" * 100_000])
    if kind == 3:
        return content + chance.randbytes(20)
    flipped = bytearray(content)
    for _ in range(chance.choice((1, 8))):
        if flipped:
            flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
    return bytes(flipped)
