"""Bring stored results up to the names that the code reads today: `python results/migrate.py [FOLDER]`.

Each rule changes the content of one file in place; applied twice it changes nothing. A file that no rule changes is
not written.
"""

import json
import sys
from pathlib import Path
from typing import Any


def halve_distances(stored: dict[str, Any]) -> None:
    """RegBench reported `l1` beside the papers' TVD, which is half of it: `tvd` and `last_tvd` are left."""
    if stored.get("header", {}).get("experiment") != "regbench":
        return
    for run in stored["runs"].values():
        for scores in (run["outcome"]["held_out"], run["outcome"]["in_distribution"]):
            for prefix in ("", "last_"):
                if scores and (distance := scores.pop(f"{prefix}l1", None)):
                    halved = {name: distance[name] / 2 for name in ("mean", "standard_error")}
                    scores[f"{prefix}tvd"] = {**distance, **halved}


# Fields of configurations that took the names of recipes and of Hugging Face.
RENAMED = {
    "batch": "batch_size",
    "check_every": "evaluate_every",
    "clip_norm": "clip",
    "heads": "num_heads",
    "layers": "num_layers",
    "memory_tokens": "num_memory_tokens",
    "memory_width": "memory_dim",
    "scalar_scale": "scalar_learning_rate_scale",
    "slots": "num_persistent_slots",
    "start": "initializer_range",
    "warmup": "warmup_ratio",
    "width": "hidden_size",
}


def rename_fields(stored: dict[str, Any]) -> None:
    """The configurations of every experiment's runs use one vocabulary."""
    if "experiment" not in stored.get("header", {}):
        return
    for run in stored["runs"].values():
        if "configuration" in run:
            run["configuration"] = _renamed(run["configuration"])


def _renamed(value: Any) -> Any:
    if isinstance(value, dict):
        return {RENAMED.get(name, name): _renamed(item) for name, item in value.items()}
    return [_renamed(item) for item in value] if isinstance(value, list) else value


def complete_sizes(stored: dict[str, Any]) -> None:
    """The sizes of associative retrieval's models are all fields of `ModelSize`."""
    if stored.get("header", {}).get("experiment") != "associative_retrieval":
        return
    for run in stored["runs"].values():
        run["configuration"]["sizes"].setdefault("kernel", "gaussian")
        run["configuration"]["sizes"].setdefault("num_persistent_slots", None)


RULES = (halve_distances, rename_fields, complete_sizes)


def migrate(folder: Path) -> list[Path]:
    """Apply every rule to every results file under `folder`; returns the files that changed."""
    changed = []
    for path in sorted(folder.glob("*/*.json")):
        text = path.read_text(encoding="utf-8")
        stored = json.loads(text)
        for rule in RULES:
            rule(stored)
        new = json.dumps(stored, indent=1, allow_nan=False) + "\n"
        if new != text:
            path.write_text(new, encoding="utf-8")
            changed.append(path)
    return changed


if __name__ == "__main__":
    for path in migrate(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent):
        print(f"migrated {path}")
