"""Model folders with Python code are refused: only code of this library and of transformers is run."""

import json
from pathlib import Path
from typing import Any

from tessera.base.errors import TesseraError

CONFIGURATIONS = ("config.json", "tokenizer_config.json", "generation_config.json", "processor_config.json")
KEYS = ("auto_map", "custom_pipelines")
OWN = "modeling_tessera."  # of `save_pretrained(with_code=True)`: names the classes that are registered here anyway


def expect_no_code(folder: Path, where: str) -> None:
    """Raise `TesseraError` when a configuration in `folder` names code to run (transformers' `auto_map`)."""
    for name in CONFIGURATIONS:
        try:
            content = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue  # a damaged file is named by what reads it
        if _names_code(content):
            raise TesseraError(
                f"{where} {folder}: must be a model of this library or of transformers; got one with code of its own "
                f"(auto_map in {name}), which is never run here."
            )


def _names_code(content: Any) -> bool:
    waiting = [content]  # no recursion: what `json` can still read may be nested deeper than Python calls
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if any(_is_foreign(value.get(key)) for key in KEYS):
                return True
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return False


def _is_foreign(named: Any) -> bool:
    is_own = isinstance(named, dict) and all(str(name).startswith(OWN) for name in named.values())
    return bool(named) and not is_own
