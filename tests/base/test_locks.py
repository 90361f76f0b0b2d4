"""One process per run folder: the second is told who holds it, and a lock dies with its process."""

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
from tessera.cli.main import main
from tessera.recipes.recipe import read_recipe
from tessera.training.run import train

# Trains, but stops before its first step until a line comes in on standard input.
SLOW = """
import sys
from pathlib import Path
from tessera.recipes.recipe import read_recipe
from tessera.training.run import train
from tessera.training.trainer import RecipeTrainer
original, waited = RecipeTrainer.training_step, []
def training_step(self, *arguments, **options):
    if not waited:
        waited.append(True)
        print("training", flush=True)
        sys.stdin.readline()
    return original(self, *arguments, **options)
RecipeTrainer.training_step = training_step
train(read_recipe(sys.argv[1]), Path(sys.argv[2]), resume=True, progress=False)
"""


def python(code, *arguments, **options):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_the_second_of_two_resumed_processes_is_told_who_holds_the_run(recipe_file, tmp_path, capsys):
    run = tmp_path / "run"
    with python(SLOW, recipe_file, run, stdin=subprocess.PIPE) as first:
        assert first.stdout.readline() == "training\n", first.stderr.read()
        assert main(["train", str(recipe_file), "--output", str(run), "--resume"]) == 2
        error = capsys.readouterr().err
        assert f"must be used by one process at a time; process {first.pid} on " in error
        assert len(error.strip().splitlines()) == 1
        for options in ({"overwrite": True}, {}):
            with pytest.raises(TesseraError, match=f"process {first.pid} on .* has been using it since 20"):
                train(read_recipe(recipe_file), run, progress=False, **options)
        first.communicate("go on\n", timeout=120)
        assert first.returncode == 0
    train(read_recipe(recipe_file), run, resume=True, progress=False)


def test_a_lock_dies_with_its_process_even_when_its_children_live(tmp_path):
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom tessera.base.locks import held\n"
        "with held(Path(sys.argv[1]), ''):\n"
        "    os.fork() or print(os.getpid(), flush=True)\n"  # the child, after it has let go of the lock
        "    time.sleep(60)"
    )
    with python(code, tmp_path / "a.lock") as process:
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
