"""What a result was made with: for every JSON file of numbers that this library writes."""

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import tessera
from tessera.base.precision import CPU_BFLOAT16, cpu_instructions

PACKAGES = ("torch", "transformers", "accelerate", "tokenizers", "numpy")
# What decides how fast a processor multiplies matrices, in float32 and in bfloat16.
INSTRUCTIONS = ("avx2", "avx512_f", "sve", *CPU_BFLOAT16)


def provenance(
    *, configuration: Any = None, seed: int | None = None, wall_seconds: float | None = None
) -> dict[str, Any]:
    """A JSON-ready record: configuration, seed, command, versions, hardware, commit, time.

    `command` is this process's, see `command_line`. `commit` is null outside a git checkout of the library and ends in
    "+changes" when tracked files outside `results/` differ from it.
    """
    module = getattr(sys.modules["__main__"], "__spec__", None)
    program = f"python -m {module.name.removesuffix('.__main__')}" if module else Path(sys.argv[0]).name
    return {
        "command": f"{program} {command_line(sys.argv[1:])}".strip(),
        "configuration": portable(configuration),
        "seed": seed,
        "versions": {"tessera": tessera.__version__, "python": platform.python_version()}
        | {name: version(name) for name in PACKAGES},
        "hardware": hardware(),
        "commit": _own_commit(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "wall_seconds": None if wall_seconds is None else round(wall_seconds, 2),
    }


def portable(value: Any) -> Any:
    """A configuration with absolute paths without their folders, which say nothing elsewhere and may name people."""
    if isinstance(value, dict):
        return {key: portable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [portable(item) for item in value]
    return Path(value).name or value if isinstance(value, str) and Path(value).is_absolute() else value


def command_line(arguments: Sequence[str]) -> str:
    """Arguments as they would be typed, absolute paths without their folders: these say nothing elsewhere.

    A path is an argument, or what follows an argument's last `=`, that is absolute and has no space in it.
    """
    parts = (argument.rpartition("=") for argument in arguments)
    return shlex.join(
        name + equals + (value if any(letter.isspace() for letter in value) else portable(value))
        for name, equals, value in parts
    )


def hardware() -> dict[str, Any]:
    """Processor, its instructions that decide speed, cores and threads in use, and the GPUs."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "processor": _processor(),
        "instructions": cpu_instructions(INSTRUCTIONS),
        "cores": num_cores(),
        "threads": torch.get_num_threads(),
        "gpus": gpus,
    }


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache  # what this process has imported is older than what is committed while it runs
def _own_commit() -> str | None:
    here = Path(tessera.__file__).parents[1]
    return commit(here) if (here / ".git").exists() else None


def commit(folder: Path) -> str | None:
    """The commit of the git checkout that holds `folder`, "+changes" where tracked files differ; None: no checkout."""
    try:
        name = _git(folder, "rev-parse", "HEAD")
        # What a command has just written is no change of what it ran with.
        written = (f":(exclude)results/*.{ending}" for ending in ("json", "md", "png"))
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".", *written)
    except (OSError, subprocess.SubprocessError):
        return None
    return name + ("+changes" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


@cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
