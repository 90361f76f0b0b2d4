"""Curricula as values, and as YAML files of their own."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tessera.base.dataclass_io import from_json
from tessera.base.errors import expect
from tessera.base.yaml_files import read_yaml
from tessera.recipes.sections import Stage


@dataclass(frozen=True)
class Curriculum:
    """Stages in their order. As YAML: `stages:` and a list of mappings with the fields of `Stage`."""

    stages: tuple[Stage, ...]

    @classmethod
    def from_dict(cls, mapping: Any, where: str = "curriculum") -> "Curriculum":
        """Read plain data.

        Raises `TesseraError`: one line per problem: unknown or missing keys, wrong types, impossible values.
        """
        has_stages = isinstance(mapping, dict) and list(mapping) == ["stages"] and isinstance(mapping["stages"], list)
        expect(has_stages and mapping["stages"], where, "file", "hold `stages:` and a list of them", repr(mapping)[:60])
        return from_json(cls, mapping, where)

    @classmethod
    def read(cls, path: str | Path) -> "Curriculum":
        """From a YAML file. Raises `TesseraError` if it is none, or not a curriculum."""
        path = Path(path)
        return cls.from_dict(read_yaml(path), path.name)

    def to_dict(self) -> dict[str, Any]:
        """Plain data; `from_dict` inverts it."""
        return {"stages": [asdict(stage) for stage in self.stages]}
