"""Locks that the kernel releases when their process dies, however it dies: filelock's, which name their holder.

They work between the processes of a machine, and over NFS on Linux.
"""

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout, lock_descriptor

from tessera.base.errors import TesseraError

try:
    import fcntl
except ImportError:  # Windows, where folders are not locked
    fcntl = None  # type: ignore[assignment]  # tested for before it is used

KIND = "tessera lock"
_TIMEOUT = 0.1  # seconds: its holder may remove the file before it is locked, and then there is a new one to lock


@contextmanager
def held(path: Path, advice: str, stays: bool = True) -> Iterator[None]:
    """Hold the lock file `path`, which is made and, unless it `stays`, deleted; it names the process that holds it.

    Raises `TesseraError` when another process, or another thread of this one, holds it.
    """
    handles: list[int] = []

    def name_holder(handle: int) -> None:
        since = datetime.now(UTC).isoformat(timespec="seconds")
        _write(handle, {"kind": KIND, "pid": os.getpid(), "host": socket.gethostname(), "since": since})
        handles.append(handle)

    lock = FileLock(path, timeout=_TIMEOUT, poll_interval=0.01, preserve_lock_file=True, on_acquired=name_holder)
    try:
        lock.acquire()
    except Timeout:
        used = path.parent if stays else path.with_suffix("")
        raise TesseraError(f"{used}: must be used by one process at a time; {_who(path)}. {advice}") from None
    try:
        yield
    finally:
        if lock.is_locked:  # not in a forked child, in which filelock has closed the handle
            with suppress(OSError):  # a full disk
                _write(handles[0], {"kind": KIND}) if stays else path.unlink()
            lock.release()


def _write(handle: int, holder: dict[str, Any]) -> None:
    content = (json.dumps(holder) + "\n").encode()
    os.lseek(handle, 0, os.SEEK_SET)
    os.write(handle, content)
    os.ftruncate(handle, len(content))


def is_lock_file(path: Path) -> bool:
    """Was `path` made by `held`?"""
    return _holder(path).get("kind") == KIND


@contextmanager
def folder_held(folder: Path) -> Iterator[None]:
    """Have `folder` alone, waiting for others inside; no lock file is left in it."""
    with _folder_handle(folder) as handle:
        if handle is not None:
            lock_descriptor(handle)
        yield


@contextmanager
def folder_shared(folder: Path, tidy: Callable[[], None]) -> Iterator[None]:
    """Work in `folder` beside other processes; `tidy()` is called first when there are none.

    What `tidy` finds half done was left by processes that died: nobody else is inside.
    """
    with _folder_handle(folder) as handle:
        if handle is not None:
            if lock_descriptor(handle, blocking=False):
                tidy()
            fcntl.flock(handle, fcntl.LOCK_SH)  # filelock's own shared locks leave a database beside what they lock
        yield


@contextmanager
def _folder_handle(folder: Path) -> Iterator[int | None]:
    if fcntl is None:
        yield None
        return
    handle = os.open(folder, os.O_RDONLY)  # the folder itself: a lock file could be removed while another waits for it
    try:
        yield handle
    finally:
        os.close(handle)


def _who(path: Path) -> str:
    holder = _holder(path)
    if "pid" not in holder:
        return "another process is using it"
    return f"process {holder.get('pid')} on {holder.get('host')} has been using it since {holder.get('since')}"


def _holder(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
