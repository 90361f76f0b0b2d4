"""Ctrl-C on a real training: a checkpoint, the command that goes on, status 130, and the same weights."""

import io
import os
import pty
import select
import shlex
import signal
import sys
import threading
import time
from contextlib import redirect_stdout

import pytest
import torch
from safetensors.torch import load_file

from tessera.base.checkpoints import latest_complete, step_of
from tessera.cli.main import main
from tessera.recipes.recipe import read_recipe
from tessera.training.run import train
from tessera.training.signals import Interruption
from tests.reliability.faults import in_child


def interrupted(words, metrics):
    """The command, with Ctrl-C at its first metrics. From outside it may come after the last step of so short a run."""

    def interrupt():
        while not (metrics.exists() and metrics.read_text()):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
    threading.Thread(target=interrupt, daemon=True).start()
    with redirect_stdout(io.StringIO()) as out:
        status = main(words)
    assert out.getvalue() == ""
    return status


@pytest.fixture
def command(recipe_file, tmp_path):
    """Words of a command whose run is never saved but at its end, and takes some seconds."""
    changes = ("training.steps=100", *(f"training.{name}_every=1000" for name in ("log", "checkpoint", "evaluate")))
    return ["train", str(recipe_file), *changes, "--output", str(tmp_path / "my run")]


def test_ctrl_c_writes_a_checkpoint_and_prints_the_command_that_goes_on(command, tmp_path, capsys):
    metrics = tmp_path / "my run" / "metrics.jsonl"
    status, said = in_child(lambda: interrupted(command, metrics))
    assert status == 130, said
    assert "Traceback" not in said

    step = step_of(latest_complete(tmp_path / "my run")[0])
    assert 0 < step < 100
    last = said.strip().splitlines()[-1]
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
        status = 70
        try:
            sys.stdout = sys.stderr = os.fdopen(2, "w", buffering=1)
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
            status = main(command)
        finally:  # whatever happens, the fork must not go on with the tests
            os._exit(status)
    metrics = tmp_path / "my run" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text()):
        assert select.select([terminal], [], [], 120)[0], "it says nothing"
        os.read(terminal, 4096)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    assert 0 < step_of(latest_complete(tmp_path / "my run")[0]) < 100
