"""Locks that the kernel releases when their process dies, however it dies.

`flock` is advisory; it works between the processes of a machine, and over NFS on Linux. Where the system has no such
locks (Windows), nothing is locked.
"""

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tessera.base.errors import TesseraError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # tested for before it is used

KIND = "tessera lock"
_handles: set[int] = set()


@contextmanager
def held(path: Path, advice: str) -> Iterator[None]:
    """Hold the lock file `path`, which is made and stays; it names the process that holds it.

    Raises `TesseraError` at once when another process, or another thread of this one, holds it.
    """
    handle = _open_locked(path, advice)
    _handles.add(handle)
    try:
        since = datetime.now(UTC).isoformat(timespec="seconds")
        _write(handle, {"kind": KIND, "pid": os.getpid(), "host": socket.gethostname(), "since": since})
        yield
    finally:
        if handle in _handles:  # not in a forked child, which has forgotten it
            _handles.discard(handle)
            with suppress(OSError):  # a full disk
                _write(handle, {"kind": KIND})
            os.close(handle)


def _write(handle: int, holder: dict[str, Any]) -> None:
    content = (json.dumps(holder) + "\n").encode()
    os.pwrite(handle, content, 0)
    os.ftruncate(handle, len(content))


def is_lock_file(path: Path) -> bool:
    """Was `path` made by `held`?"""
    return _holder(path).get("kind") == KIND


@contextmanager
def folder_held(folder: Path) -> Iterator[None]:
    """Have `folder` alone, waiting for others inside; no lock file is left in it."""
    with _folder_handle(folder) as handle:
        if handle is not None:
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def folder_shared(folder: Path, tidy: Callable[[], None]) -> Iterator[None]:
    """Work in `folder` beside other processes; `tidy()` is called first when there are none.

    What `tidy` finds half done was left by processes that died: nobody else is inside.
    """
    with _folder_handle(folder) as handle:
        if handle is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                tidy()
            except BlockingIOError:
                pass
            fcntl.flock(handle, fcntl.LOCK_SH)
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


def _open_locked(path: Path, advice: str) -> int:
    """A handle of the locked file that has this name now."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same(handle, path):
                return handle
        except BlockingIOError:
            os.close(handle)
            raise TesseraError(
                f"{path.parent}: must be used by one process at a time; {_who(path)}. {advice}"
            ) from None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its holder has removed the file meanwhile: lock the new one


def _is_same(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


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


def _forget_in_child() -> None:
    """A forked child (a worker that loads data) must not keep the lock of a parent that dies before it."""
    for handle in _handles:
        os.close(handle)
    _handles.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
