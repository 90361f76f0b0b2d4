"""YAML as data that a person wrote: what JSON can say, of bounded size, and no key stands twice."""

import json
import re
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import yaml

from tessera.base.errors import TesseraError, expect

MOST_BYTES = 1_000_000
DEEPEST = 100  # brackets in brackets; PyYAML's time grows with their square
MOST_PIECES = 100_000  # of JSON: of the values with every alias written out


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader for mappings with different keys of text. Dates stay text; 5e-3 is a number (YAML 1.2)."""

    def fetch_flow_collection_start(self, TokenClass: type) -> None:
        """PyYAML's, at a bracket that opens."""
        if self.flow_level == DEEPEST:
            raise yaml.YAMLError("it is nested too deep")
        super().fetch_flow_collection_start(TokenClass)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """PyYAML's, which would take the last of two equal keys."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.tag != "tag:yaml.org,2002:str":
                shown = str(key.value)[:40] if isinstance(key, yaml.ScalarNode) else "a list or a mapping"
                raise yaml.YAMLError(f"its keys are text: write quotes around {shown} in line {line}")
            if key.value in lines:
                raise yaml.YAMLError(f"the key {key.value!r} stands twice, in lines {lines[key.value]} and {line}")
            lines[key.value] = line
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """PyYAML's safe writer, which sets quotes around text that `_Loader` takes for a number (a run named 1e-3)."""


def _number(construct: Callable) -> Callable:
    """PyYAML's `construct`, but as in YAML 1.2: 010 is ten, not eight, and 1:20 a text, not eighty."""

    def constructed(loader: _Loader, node: yaml.ScalarNode) -> Any:
        text = str(node.value)
        if ":" in text:
            return text
        return int(text.replace("_", "")) if _LEADING_ZERO.match(text) else construct(loader, node)

    return constructed


_LEADING_ZERO = re.compile(r"[-+]?0[0-7_]+$")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")
_Loader.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: node.value)
_Loader.add_constructor("tag:yaml.org,2002:int", _number(yaml.SafeLoader.construct_yaml_int))
_Loader.add_constructor("tag:yaml.org,2002:float", _number(yaml.SafeLoader.construct_yaml_float))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def read_yaml(path: Path, what: str = "file") -> Any:
    """The content of a YAML file.

    Raises `TesseraError`: it cannot be read, is no UTF-8, larger than a megabyte, or no YAML (see `parse_yaml`).
    """
    try:
        with open(path, "rb") as file:
            content = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        raise TesseraError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error}).") from None
    expect(len(content) <= MOST_BYTES, str(path), what, f"be YAML of at most {MOST_BYTES:,} bytes", "more")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TesseraError(f"{path}: {what} must be UTF-8 text; byte {error.start} is not.") from None
    return parse_yaml(text, str(path), what)


def parse_yaml(text: str, where: str, what: str = "value") -> Any:
    """The content of YAML text: None, text, numbers, true and false, lists, and mappings with keys of text.

    Raises `TesseraError`: no YAML, or YAML of other values, with double keys, nested deeper than Python calls, or of
    more values than a person writes.
    """
    try:
        value = yaml.load(text, Loader=_Loader)
        for count, _ in enumerate(json.JSONEncoder().iterencode(value)):  # lazily: aliases can stand for billions
            if count == MOST_PIECES:
                raise yaml.YAMLError("with its aliases written out it is too large")
        return value
    except RecursionError:
        problem = "it is nested too deep"
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError) as error:
        problem = " ".join(str(error).split())[:300]
    raise TesseraError(f"{where}: {what} must be YAML; {problem}.")


def to_yaml(value: Any) -> str:
    """YAML text that `parse_yaml` makes `value` of again, with mappings in their order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False)
