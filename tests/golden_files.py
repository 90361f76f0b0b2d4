"""Loading the golden files: outputs of published code for given parameters and inputs."""

import json
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

FOLDER = Path(__file__).parent / "golden"


def load(family: str, case: str) -> tuple[dict[str, Tensor], dict]:
    """Tensors and description of one case."""
    path = FOLDER / family / case
    return load_file(path.with_suffix(".safetensors")), json.loads(path.with_suffix(".json").read_text())


def cases(family: str) -> list[str]:
    """Names of a family's cases."""
    return sorted(path.stem for path in (FOLDER / family).glob("*.safetensors"))


def part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors below `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
