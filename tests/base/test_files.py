"""Files are complete or absent; a write that fails is one line; outputs are tried beforehand without a trace."""

import os
import resource
import signal
import socket
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from tessera.base.errors import TesseraError, first_line
from tessera.base.files import (
    expect_plain_file,
    expect_writable,
    new_folder,
    write_atomically,
    write_text_atomically,
    writing,
)
from tests.refusals import refused


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    write_text_atomically(path, "old")

    def fail(temporary):
        temporary.write_text("half")
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_what_dead_processes_left_of_a_file_is_deleted_and_the_rest_is_not(tmp_path):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    host = socket.gethostname()
    keep = {f"a.txt.{host}-{os.getppid()}.tmp", f"a.txt.elsewhere-{child}.tmp"}  # of a living one, of another machine
    keep |= {f"b.txt.{host}-{child}.tmp", "notes.tmp"}
    for name in (*keep, f"a.txt.{host}-{child}.tmp"):
        (tmp_path / name).write_text("half")
    write_text_atomically(tmp_path / "a.txt", "new")
    assert set(os.listdir(tmp_path)) == keep | {"a.txt"}


WRITERS = {
    "python": lambda path: path.write_bytes(bytes(10_000)),
    "safetensors": lambda path: save_file({"a": torch.zeros(5_000)}, path),
    "torch": lambda path: torch.save(torch.zeros(5_000), path),
    "tokenizers": lambda path: Tokenizer(models.BPE(vocab={str(n): n for n in range(3000)}, merges=[])).save(str(path)),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_librarys_failing_write_is_one_line(tmp_path, name):
    """A limit on the size of files stands for a full disk."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with (
            pytest.raises(TesseraError, match=r"big: the weights cannot be written \(.+\)\. Free some space\."),
            writing(tmp_path / "big", "the weights", "Free some space."),
        ):
            WRITERS[name](tmp_path / "big")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    with pytest.raises(TesseraError, match="cannot be written"), writing(tmp_path / "no"):
        WRITERS[name](tmp_path / "no" / "such" / "folder")


def test_a_file_that_is_there_is_not_called_missing(tmp_path):
    """As safetensors calls what it may not read."""
    (tmp_path / "a").write_bytes(b"")
    said = first_line(FileNotFoundError(f"No such file or directory: {tmp_path / 'a'}"))
    assert said == f"cannot be opened: {str(tmp_path / 'a')!r}; may you read it?"
    assert first_line(FileNotFoundError(f"No such file or directory: {tmp_path / 'b'}")).startswith("No such file")


def test_other_errors_pass(tmp_path):
    with pytest.raises(ZeroDivisionError), writing(tmp_path):
        raise ZeroDivisionError


def test_outputs_are_tried_without_a_trace(tmp_path):
    expect_writable(tmp_path / "new" / "deep" / "a.png", "eval", "--plot")
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file" / "a.png", tmp_path / ("x" * 300), tmp_path / "a\0b"):
        refused("eval: --plot must be a file that can be written; got", expect_writable, path, "eval", "--plot")
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_files_have_the_modes_that_the_umask_says(tmp_path, mask):
    before = os.umask(mask)
    try:
        for name, write in WRITERS.items():
            write_atomically(tmp_path / name, write)
        with new_folder(tmp_path / "folder") as folder:
            (folder / "inner").mkdir()
            WRITERS["safetensors"](folder / "inner" / "weights")
    finally:
        os.umask(before)
    files = [*(tmp_path / name for name in WRITERS), tmp_path / "folder" / "inner" / "weights"]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o666 & ~mask}


@pytest.mark.parametrize(
    ("name", "reason"),
    [("no", "does not exist"), (".", "is no plain file"), ("pipe", "is no plain file"), ("x" * 5000, "is no name")],
    ids=["absent", "folder", "pipe", "long"],
)
def test_what_is_no_plain_file_is_said(tmp_path, name, reason):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    expect_plain_file(tmp_path / "file", "ask", "--samples")
    with pytest.raises(TesseraError, match=f"ask: --samples must be a file; got .*, which {reason}"):
        expect_plain_file(tmp_path / name, "ask", "--samples")


def test_a_file_in_a_folder_without_permission_is_not_called_a_wrong_name(tmp_path, monkeypatch):
    def failing(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", failing)
    refused(r"which cannot be read \(Permission denied\)", expect_plain_file, tmp_path / "memory", "ask", "--memory")
