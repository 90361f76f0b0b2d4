"""YAML as data that a person wrote: bounded in size and depth, keys are text, and no key stands twice."""

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from tessera.base.errors import TesseraError, expect

MOST_BYTES = 1_000_000
MOST_VALUES = 20_000  # with every alias written out
DEEPEST = 50
MOST_DIGITS = 30
_NOT_OURS = {f"tag:yaml.org,2002:{name}" for name in ("binary", "omap", "pairs", "set", "timestamp")}
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$")


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader within the limits above. Dates stay text, and 5e-3 is a number, as in YAML 1.2."""

    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in pairs if tag != "tag:yaml.org,2002:timestamp"]
        for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    yaml_constructors = {tag: build for tag, build in yaml.SafeLoader.yaml_constructors.items() if tag not in _NOT_OURS}
    depth = 0

    def fetch_flow_collection_start(self, token: Any) -> None:
        """PyYAML's, within the depth of brackets."""
        if self.flow_level >= DEEPEST:  # the scanner reads on to the end before the composer sees a node
            raise _Refusal(f"nested at most {DEEPEST} deep", self.get_mark())
        super().fetch_flow_collection_start(token)

    def compose_node(self, parent: Any, index: Any) -> yaml.Node | None:
        """PyYAML's, within the depth of nesting."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise _Refusal(f"nested at most {DEEPEST} deep", self.peek_event().start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def get_single_data(self) -> Any:
        """PyYAML's, after counting what aliases expand to."""
        node = self.get_single_node()
        if node is None:
            return None
        _count(node, {})
        return self.construct_document(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """PyYAML's, for keys that are text and stand once: it would take the last of two equal keys."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.tag != "tag:yaml.org,2002:str":
                shown = key.value if isinstance(key, yaml.ScalarNode) else "a list or a mapping"
                raise _Refusal(f"whose keys are text (write quotes around {str(shown)[:40]})", key.start_mark)
            if key.value in lines:
                raise _Refusal(f"without double keys ({key.value!r} stands in lines {lines[key.value]} and {line})")
            lines[key.value] = line
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """PyYAML's, for integers that Python converts without limit."""
        if len(node.value) > MOST_DIGITS:
            raise _Refusal(f"of integers of at most {MOST_DIGITS} digits", node.start_mark)
        return super().construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


class _Refusal(Exception):
    """What YAML must be, and where it is not."""

    def __init__(self, requirement: str, mark: yaml.Mark | None = None) -> None:
        super().__init__(requirement + (f"; see line {mark.line + 1}" if mark is not None else ""))


def read_yaml(path: Path, what: str = "file") -> Any:
    """The content of a YAML file.

    Raises:
        TesseraError: it cannot be read, is no UTF-8, larger than a megabyte, or no YAML (see `parse_yaml`).
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

    Raises:
        TesseraError: no YAML, or YAML with tags beyond the above, double keys, keys that are no text, nesting deeper
            than 50, integers of more than 30 digits, or aliases that stand for more than 20,000 values.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except _Refusal as refusal:
        raise TesseraError(f"{where}: {what} must be YAML {refusal}.") from None
    except (yaml.YAMLError, ValueError, TypeError, AttributeError) as error:
        raise TesseraError(f"{where}: {what} must be YAML; {' '.join(str(error).split())[:300]}.") from None


def _count(node: yaml.Node, sizes: dict[int, int | None]) -> int:
    """Values under `node`, those of an alias as often as it stands."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) in sizes:
        size = sizes[id(node)]
        if size is None:
            raise _Refusal("that does not contain itself", node.start_mark)
        return size
    sizes[id(node)] = None
    parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
    size = 1 + sum(_count(part, sizes) for part in parts)
    if size > MOST_VALUES:
        raise _Refusal(f"of at most {MOST_VALUES:,} values, aliases written out", node.start_mark)
    sizes[id(node)] = size
    return size
