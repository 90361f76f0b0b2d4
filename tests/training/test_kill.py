"""kill -9 at random moments of a real process, then --resume: the weights end bit-identical."""

import os
import random
import signal
import time

import pytest

from tessera.base.checkpoints import verify
from tessera.base.errors import TesseraError
from tessera.cli.main import main
from tessera.recipes.recipe import read_recipe
from tessera.training.run import train
from tests.training.processes import metrics, same_weights

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
    overrides = (
        "training.steps=40 training.checkpoint_every=2 model.weight_dropout=0.1 training.keep_checkpoints=2".split()
    )
    recipe, kills, chance = read_recipe(recipe_file, overrides), 0, random.Random(7)
    assert attempt(recipe, tmp_path / "whole") == 0
    for checkpoints in (1, 0, 2, 2, 0, 1, 2):
        status = attempt(recipe, tmp_path / "killed", (checkpoints, chance.uniform(0, 0.05)))
        kills += os.WIFSIGNALED(status)
        assert status == 0 or os.WIFSIGNALED(status), "a resumed run failed"
    assert attempt(recipe, tmp_path / "killed") == 0
    assert kills >= 5, "otherwise the test has tested little"
    same_weights(tmp_path / "killed", tmp_path / "whole")
    assert verify(tmp_path / "killed" / "checkpoints" / "checkpoint-40") is None
    assert metrics(tmp_path / "killed", "loss") == metrics(tmp_path / "whole", "loss")


def test_who_comes_second_is_told_who_holds_the_run(recipe_file, tmp_path, capsys, change_losses):
    """A lock is held against everybody: here the process that trains tries it again."""
    run, recipe = tmp_path / "run", read_recipe(recipe_file)

    def come_second(step, loss):
        if step == 0:
            assert main(["train", str(recipe_file), "--output", str(run), "--resume"]) == 2
            error = capsys.readouterr().err
            assert f"must be used by one process at a time; process {os.getpid()} on " in error
            assert len(error.strip().splitlines()) == 1
            for options in ({"overwrite": True}, {}):
                with pytest.raises(TesseraError, match=f"process {os.getpid()} on .* has been using it since 20"):
                    train(recipe, run, progress=False, **options)
        return loss

    change_losses(come_second)
    train(recipe, run, resume=True, progress=False)
    train(recipe, run, resume=True, progress=False)
