"""A lock says who holds it, and dies with its process."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tessera.base.errors import TesseraError
from tessera.base.locks import folder_shared, held


def test_a_lock_dies_with_its_process_even_when_its_children_live(tmp_path):
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom tessera.base.locks import held\n"
        "with held(Path(sys.argv[1]), ''):\n"
        "    os.fork() or print(os.getpid(), flush=True)\n"  # the child, after it has let go of the lock
        "    time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "a.lock"], stdout=subprocess.PIPE, text=True
    ) as process:
        parent, child = process.pid, int(process.stdout.readline())
        with pytest.raises(TesseraError, match=f"process {parent} on"), held(tmp_path / "a.lock", ""):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
        os.kill(child, 0)  # it lives
        with held(tmp_path / "a.lock", ""):
            assert json.loads((tmp_path / "a.lock").read_text())["pid"] == os.getpid()
        os.kill(child, signal.SIGKILL)


def test_a_file_that_was_replaced_while_it_was_locked_is_left(tmp_path, monkeypatch):
    """Between opening and locking, its holder may remove the file, and a third process make a new one."""
    path, original, calls = tmp_path / "a.lock", fcntl.flock, []

    def flock(handle, operation):
        calls.append(handle)
        if len(calls) == 1:
            path.unlink()
            path.touch()
        return original(handle, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with held(path, ""):
        assert len(calls) == 2
        monkeypatch.undo()
        with pytest.raises(TesseraError, match="one process at a time"), held(path, ""):
            pass


def test_only_who_is_alone_tidies(tmp_path):
    tidied = []
    with folder_shared(tmp_path, lambda: tidied.append("first")), folder_shared(tmp_path, lambda: tidied.append("no")):
        pass
    assert tidied == ["first"]


def test_a_lock_says_since_when(tmp_path):
    with held(tmp_path / "a.lock", "Wait."):
        record = json.loads((tmp_path / "a.lock").read_text())
        assert record["since"].startswith(time.strftime("%Y", time.gmtime()))
    assert "pid" not in json.loads((tmp_path / "a.lock").read_text())
