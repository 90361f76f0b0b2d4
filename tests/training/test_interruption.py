"""Ctrl-C on a real process that trains: a checkpoint, the command that goes on, status 130, and the same weights."""

import os
import shlex
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from tessera.checkpoints import latest_complete, step_of
from tessera.cli.main import main
from tessera.training.recipe import read_recipe
from tessera.training.run import train


@pytest.fixture
def command(recipe_file, tmp_path):
    """Words of a command whose run is never saved but at its end, and takes some seconds."""
    changes = ("training.steps=100", *(f"training.{name}_every=1000" for name in ("log", "checkpoint", "evaluate")))
    return ["train", str(recipe_file), *changes, "--output", str(tmp_path / "my run")]


def test_ctrl_c_writes_a_checkpoint_and_prints_the_command_that_goes_on(command, tmp_path, capsys):
    process = subprocess.Popen(
        [sys.executable, "-m", "tessera.cli.main", *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics, deadline = tmp_path / "my run" / "metrics.jsonl", time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline and not (metrics.exists() and metrics.read_text()):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err

    step = step_of(latest_complete(tmp_path / "my run")[0])
    assert 0 < step < 100
    last = err.strip().splitlines()[-1]
    assert f"stopped after step {step} of 100" in last
    words = shlex.split(last.partition("Go on: ")[2])
    assert words == ["tessera", *command, "--resume"]
    assert main(words[1:]) == 0

    capsys.readouterr()
    train(read_recipe(command[1], command[2:6]), tmp_path / "whole", progress=False)
    resumed, whole = (load_file(tmp_path / name / "model.safetensors") for name in ("my run", "whole"))
    assert resumed.keys() == whole.keys()
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)
