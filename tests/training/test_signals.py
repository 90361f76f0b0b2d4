"""Ctrl-C on a real training: a checkpoint, the command that goes on, status 130, and the same weights."""

import os
import pty
import select
import shlex
import signal
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from tessera.base.checkpoints import latest_complete, step_of
from tessera.cli.main import main
from tessera.recipes.recipe import read_recipe
from tessera.training.run import train
from tessera.training.signals import Interruption

# The signal comes from a thread of the process itself: from outside it may come after the last step of so short a run.
INTERRUPTED = """
import os, signal, sys, threading, time
from pathlib import Path
from tessera.cli.main import main

def interrupt(metrics):
    while not (metrics.exists() and metrics.read_text()):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, args=[Path(sys.argv[1])], daemon=True).start()
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture
def command(recipe_file, tmp_path):
    """Words of a command whose run is never saved but at its end, and takes some seconds."""
    changes = ("training.steps=100", *(f"training.{name}_every=1000" for name in ("log", "checkpoint", "evaluate")))
    return ["train", str(recipe_file), *changes, "--output", str(tmp_path / "my run")]


def test_ctrl_c_writes_a_checkpoint_and_prints_the_command_that_goes_on(command, tmp_path, capsys):
    metrics = tmp_path / "my run" / "metrics.jsonl"
    process = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(metrics), *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 130, process.stderr
    assert process.stdout == ""
    assert "Traceback" not in process.stderr

    step = step_of(latest_complete(tmp_path / "my run")[0])
    assert 0 < step < 100
    last = process.stderr.strip().splitlines()[-1]
    assert f"stopped after step {step} of 100" in last
    words = shlex.split(last.partition("Go on: ")[2])
    assert words == ["tessera", *command, "--resume"]
    assert main(words[1:]) == 0

    capsys.readouterr()
    train(read_recipe(command[1], command[2:6]), tmp_path / "whole", progress=False)
    resumed, uninterrupted = (load_file(tmp_path / name / "model.safetensors") for name in ("my run", "whole"))
    assert resumed.keys() == uninterrupted.keys()
    assert all(torch.equal(resumed[name], uninterrupted[name]) for name in uninterrupted)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_signal_asks_for_a_stop_and_a_second_one_stops_at_once(number):
    interruption, before = Interruption(), signal.getsignal(number)
    with interruption.listening():
        assert not interruption.is_requested
        signal.raise_signal(number)
        assert interruption.is_requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a terminal of its own")
def test_a_lost_terminal_leaves_a_checkpoint(command, tmp_path):
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-m", "tessera.cli.main", *command])
    metrics = tmp_path / "my run" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text()):
        assert select.select([terminal], [], [], 120)[0], "it says nothing"
        os.read(terminal, 4096)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    assert 0 < step_of(latest_complete(tmp_path / "my run")[0]) < 100
