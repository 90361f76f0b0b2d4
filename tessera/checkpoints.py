"""Checkpoints that are whole or do not exist.

A checkpoint is written in a draft folder, sealed with a list of its files (sizes and checksums), and renamed. A kill
at any moment leaves the earlier checkpoints and at most a draft; damage done later is seen by the seal.
"""

import json
import os
import re
import shutil
import zlib
from pathlib import Path

FOLDER, DRAFT, SEAL = "checkpoints", "draft.tmp", "complete.json"
_NAME = re.compile(r"checkpoint-(\d+)$")


def seal(folder: Path) -> None:
    """Write the seal: every file's size and checksum, after all of them have reached the disk."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        _sync(path)
    record = {str(path.relative_to(folder)): [path.stat().st_size, _checksum(path)] for path in files}
    (folder / SEAL).write_text(json.dumps(record, indent=1) + "\n")
    _sync(folder / SEAL)


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, in a few words; None for a whole one."""
    try:
        record = json.loads((folder / SEAL).read_text())
    except (OSError, ValueError):
        return f"no readable {SEAL}"
    for name, (size, checksum) in record.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} of {size} bytes"
        if _checksum(path) != checksum:
            return f"{name} was changed"
    return None


def publish(draft: Path, final: Path) -> None:
    """Seal `draft` and give it its final name, replacing a damaged checkpoint of that name."""
    seal(draft)
    if final.exists():
        shutil.rmtree(final)
    final.parent.mkdir(parents=True, exist_ok=True)
    os.replace(draft, final)
    _sync(final.parent)


def checkpoints(run: Path) -> list[Path]:
    """All checkpoint folders of a run, the latest first, whole or not."""
    found = [path for path in (run / FOLDER).glob("checkpoint-*") if _NAME.search(path.name)]
    return sorted(found, key=step_of, reverse=True)


def step_of(checkpoint: Path) -> int:
    """The optimizer step after which a checkpoint was written."""
    return int(_NAME.search(checkpoint.name).group(1))


def latest_whole(run: Path) -> tuple[Path | None, list[str]]:
    """The latest whole checkpoint of a run, and a line for each damaged one that was passed over."""
    passed = []
    for checkpoint in checkpoints(run):
        reason = damage(checkpoint)
        if reason is None:
            return checkpoint, passed
        passed.append(f"{checkpoint}: passed over, {reason}")
    return None, passed


def prune(run: Path, keep: int) -> None:
    """Delete all but the `keep` latest checkpoints."""
    for checkpoint in checkpoints(run)[keep:]:
        shutil.rmtree(checkpoint, ignore_errors=True)


def _checksum(path: Path) -> int:
    value = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            value = zlib.crc32(block, value)
    return value


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
