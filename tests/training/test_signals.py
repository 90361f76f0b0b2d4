"""Ctrl-C on a training in its own process: a checkpoint, the command that goes on, status 130, the same weights."""

import io
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tessera.base.checkpoints import latest_complete, step_of
from tessera.cli.main import main
from tessera.recipes.recipe import read_recipe
from tessera.training.run import Interruption, train
from tests.training.processes import same_weights

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _ctrl_c_is_heard():
    """Also where the tests run in the background of a shell, whose processes ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


PROGRAM = """if True:
    import sys, threading
    from pathlib import Path
    import torch
    from tessera.cli.main import main
    from tests.training.test_signals import interrupt
    if sys.argv[1]:
        threading.Thread(target=interrupt, args=[Path(sys.argv[1])], daemon=True).start()
    torch.set_num_threads(1)  # as in the tests' own process, whose weights must be equal
    sys.exit(main(sys.argv[2:]))
"""


def in_an_interpreter(words, interrupted=""):
    """The command line in one of its own, since threads of this one may hold locks.

    `interrupted`: the metrics, upon whose first line the process sends itself Ctrl-C.
    """
    return [sys.executable, "-c", PROGRAM, str(interrupted), *words]


def interrupt(metrics):
    """From a thread of the process itself: from outside it may come after the last step of so short a run."""
    while not (metrics.exists() and metrics.read_text()):
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def command(recipe_file, tmp_path):
    """Words of a command whose run is never saved but at its end, and takes some seconds."""
    changes = ("training.steps=100", *(f"training.{name}_every=1000" for name in ("log", "checkpoint", "evaluate")))
    return ["train", str(recipe_file), *changes, "--output", str(tmp_path / "my run")]


@pytest.mark.grid
def test_ctrl_c_writes_a_checkpoint_and_prints_the_command_that_goes_on(command, tmp_path, capsys):
    command[2] = "training.steps=40"  # enough where the signal comes from inside
    metrics = tmp_path / "my run" / "metrics.jsonl"
    done = subprocess.run(in_an_interpreter(command, metrics), cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    assert "Traceback" not in done.stderr

    step = step_of(latest_complete(tmp_path / "my run")[0])
    assert 0 < step < 40
    last = done.stderr.strip().splitlines()[-1]
    assert f"stopped after step {step} of 40" in last
    words = shlex.split(last.partition("Go on: ")[2])
    assert words == ["tessera", *command, "--resume"]
    assert main(words[1:]) == 0

    capsys.readouterr()
    train(read_recipe(command[1], command[2:6]), tmp_path / "whole", progress=False)
    same_weights(tmp_path / "my run", tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_signal_asks_for_a_stop_and_a_second_one_stops_at_once(number):
    outside = signal.signal(number, signal.default_int_handler)  # under nohup SIGHUP is ignored, and stays so
    try:
        interruption = Interruption()
        with interruption.listening():
            assert not interruption.is_requested
            signal.raise_signal(number)
            assert interruption.is_requested
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, outside)


def test_a_signal_inside_a_write_is_heard(monkeypatch):
    """Its handler may not write then: Python refuses a second write inside the first."""

    class Busy(io.StringIO):
        def write(self, text):
            raise RuntimeError("reentrant call inside <_io.BufferedWriter name=2>")

    monkeypatch.setattr(sys, "stderr", Busy())
    interruption = Interruption()
    with interruption.listening():
        signal.raise_signal(signal.SIGINT)
    assert interruption.is_requested


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a terminal of its own")
def test_a_lost_terminal_leaves_a_checkpoint(command, tmp_path):
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, in_an_interpreter(command))
    metrics = tmp_path / "my run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and metrics.read_text()):
        assert time.monotonic() < deadline, "it does not begin"
        if select.select([terminal], [], [], 0.001)[0]:
            os.read(terminal, 4096)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    assert 0 < step_of(latest_complete(tmp_path / "my run")[0]) < 100
