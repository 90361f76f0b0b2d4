"""kill -9 at random moments of a real process, then --resume: the weights end bit-identical."""

import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from tessera.base.checkpoints import verify

# One process loads the library once and forks a child for every attempt. Each child but the last is killed with SIGKILL
# a random moment after it has written some checkpoints (or right at its start), wherever it is by then: reading,
# training, writing or renaming. Counting checkpoints, not seconds, makes it the same test on a busy machine.
DRIVER = """
import os, random, signal, sys, time
from pathlib import Path
from tessera.recipes.recipe import read_recipe
from tessera.training.run import train
import transformers.models.gpt2.modeling_gpt2
from transformers.utils import logging
logging.set_verbosity_error()

recipe, folder, seed = read_recipe(sys.argv[1], sys.argv[4:]), Path(sys.argv[2]), int(sys.argv[3])
chance, kills = random.Random(seed), 0

def newest(folder):
    names = [path.name.removeprefix("checkpoint-") for path in folder.glob("checkpoints/checkpoint-*")]
    return max((int(name) for name in names if name.isdigit()), default=0)

def attempt(folder, checkpoints=None):
    child = os.fork()
    if child == 0:
        try:
            train(recipe, folder, resume=True, progress=False)
            os._exit(0)
        finally:
            os._exit(1)
    if checkpoints is not None:
        goal = newest(folder) + 2 * checkpoints
        while newest(folder) < goal and not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.1))
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]

if attempt(folder / "whole"):
    sys.exit("the uninterrupted run failed")
for checkpoints in (1, 0, 3, 2, 0, 1, 4):
    status = attempt(folder / "killed", checkpoints)
    kills += os.WIFSIGNALED(status)
    if not os.WIFSIGNALED(status) and os.WEXITSTATUS(status):
        sys.exit("a resumed run failed")
if attempt(folder / "killed"):
    sys.exit("the last resumed run failed")
print(kills)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kill_minus_nine_at_random_moments(recipe_file, tmp_path):
    overrides = [
        "training.steps=60",
        "training.checkpoint_every=2",
        "model.weight_dropout=0.1",
        "training.keep_checkpoints=2",
    ]
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(recipe_file), str(tmp_path), "7", *overrides],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 5  # otherwise the test has tested little
    uninterrupted, killed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert uninterrupted.keys() == killed.keys()
    assert all(torch.equal(uninterrupted[name], killed[name]) for name in uninterrupted)
    last = tmp_path / "killed" / "checkpoints" / "checkpoint-60"
    assert verify(last) is None
    steps = [
        line.split(",")[0]
        for line in (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines()
        if '"loss"' in line
    ]
    assert len(steps) == len(set(steps)) == 60
