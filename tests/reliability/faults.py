"""Faults placed before the n-th file operation of a command: the process is killed there, or the disk is full.

Python tells an audit hook of every file that is opened for writing, renamed or removed and of every folder made or
removed; the hook counts those below a folder. Writes inside of compiled code are reached by a limit on the size of
files.
"""

import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path

from tqdm.std import TRLock, tqdm

# event -> index of the argument that is the path
EVENTS = {"os.rename": 1, "os.remove": 0, "os.rmdir": 0, "os.mkdir": 0, "shutil.rmtree": 0}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
NO_FAULT, CRASHED = 10**9, 70


def in_child(call: Callable[[], int], prepare: Callable[[], None] = lambda: None) -> tuple[int, str]:
    """(exit status, or minus the signal that killed it; what it said on standard error) of `call` in a fork."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = CRASHED
        try:
            tqdm.set_lock(TRLock())  # its own is shared with all forks: one that is killed would keep it for ever
            os.dup2(write, 2)
            sys.stdout, sys.stderr = open(os.devnull, "w"), os.fdopen(2, "w", buffering=1)  # noqa: SIM115
            prepare()
            status = call()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode("utf-8", "replace")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def kill_at(place: int, folder: Path) -> Callable[[], None]:
    """Kill this process before its file operation number `place` below `folder`."""

    def strike(path: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    return lambda: _watch(place, folder, strike, once=True)


def full_disk_from(place: int, folder: Path) -> Callable[[], None]:
    """From operation number `place` on nothing can be written below `folder`; deleting still works."""

    def strike(path: str) -> None:
        raise OSError(ENOSPC, os.strerror(ENOSPC), path)

    return lambda: _watch(place, folder, strike, once=False, deletes=False)


def small_files(limit: int) -> Callable[[], None]:
    """No file can grow beyond `limit` bytes, whoever writes it."""

    def prepare() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return prepare


def count_operations(call: Callable[[], int], folder: Path) -> int:
    """How many file operations `call` does below `folder`; 0 when it fails."""
    count = folder.with_name(folder.name + ".count")

    def counted() -> int:
        counter = _watch(NO_FAULT, folder, lambda path: None, once=True)
        status = call()
        count.write_text(str(counter[0]))
        return status

    status, said = in_child(counted)
    if status != 0:
        raise AssertionError(f"without a fault it ends with {status}: {said}")
    number = int(count.read_text())
    count.unlink()
    return number


def _watch(place: int, folder: Path, strike: Callable[[str], None], once: bool, deletes: bool = True) -> list[int]:
    """Call `strike` at operation `place` (and, unless `once`, at all later ones); returns the counter."""
    root, counter = str(folder.resolve()), [0]

    def hook(event: str, arguments: tuple) -> None:
        if event == "open":
            is_write = (
                isinstance(arguments[2], int) and arguments[2] & WRITING and isinstance(arguments[0], str | os.PathLike)
            )
            path = arguments[0] if is_write else None
        else:
            path = arguments[EVENTS[event]] if event in EVENTS else None
        if path is None or isinstance(path, int) or not os.path.abspath(os.fsdecode(path)).startswith(root):
            return
        counter[0] += 1
        is_delete = event in ("os.remove", "os.rmdir", "shutil.rmtree")
        if counter[0] == place or (not once and counter[0] > place and (deletes or not is_delete)):
            strike(os.fsdecode(path))

    sys.addaudithook(hook)
    return counter
