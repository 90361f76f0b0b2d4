"""kill -9 at random moments of a real process, then --resume: the weights end bit-identical."""

import os
import random
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

from tessera.base.checkpoints import verify
from tessera.recipes.recipe import read_recipe
from tessera.training.run import train

# Each fork but the last is killed with SIGKILL a random moment after it has written some checkpoints (or right at its
# start), wherever it is by then: reading, training, writing or renaming. Counting checkpoints, not seconds, makes it
# the same test on a busy machine.


def newest(folder):
    """The step of the newest checkpoint, complete or not; 0: none."""
    names = os.listdir(folder / "checkpoints") if (folder / "checkpoints").exists() else []
    steps = (name.removeprefix("checkpoint-") for name in names)
    return max((int(step) for step in steps if step.isdigit()), default=0)


def attempt(recipe, folder, moment=None):
    """Train in a fork, to the end or until it is killed `moment[1]` seconds after so many checkpoints; its status."""
    child = os.fork()
    if child == 0:
        try:
            train(recipe, folder, resume=True, progress=False)
            os._exit(0)
        finally:
            os._exit(1)
    if moment is not None:
        goal = newest(folder) + 2 * moment[0]
        while newest(folder) < goal and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            time.sleep(0.002)
        time.sleep(moment[1])
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kill_minus_nine_at_random_moments(recipe_file, tmp_path):
    overrides = [
        "training.steps=40",
        "training.checkpoint_every=2",
        "model.weight_dropout=0.1",
        "training.keep_checkpoints=2",
    ]
    recipe, kills, chance = read_recipe(recipe_file, overrides), 0, random.Random(7)
    assert attempt(recipe, tmp_path / "whole") == 0
    for checkpoints in (1, 0, 2, 2, 0, 1, 2):
        status = attempt(recipe, tmp_path / "killed", (checkpoints, chance.uniform(0, 0.05)))
        kills += os.WIFSIGNALED(status)
        assert status == 0 or os.WIFSIGNALED(status), "a resumed run failed"
    assert attempt(recipe, tmp_path / "killed") == 0
    assert kills >= 5, "otherwise the test has tested little"
    uninterrupted, killed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert uninterrupted.keys() == killed.keys()
    assert all(torch.equal(uninterrupted[name], killed[name]) for name in uninterrupted)
    last = tmp_path / "killed" / "checkpoints" / "checkpoint-40"
    assert verify(last) is None
    steps = [
        line.split(",")[0]
        for line in (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()
        if '"loss"' in line
    ]
    assert len(steps) == len(set(steps)) == 40
