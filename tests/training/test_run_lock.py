"""One process per run folder: the second is told who holds it."""

import subprocess
import sys

import pytest

from tessera.base.errors import TesseraError
from tessera.cli.main import main
from tessera.recipes.recipe import read_recipe
from tessera.training.run import train

# Trains, but stops before its first step until a line comes in on standard input.
SLOW = """
import sys
from pathlib import Path
from tessera.recipes.recipe import read_recipe
from tessera.training.run import train
from tessera.training.training_data import TextData
original, waited = TextData.losses, []
def losses(self, *arguments):
    if not waited:
        waited.append(True)
        print("training", flush=True)
        sys.stdin.readline()
    return original(self, *arguments)
TextData.losses = losses
train(read_recipe(sys.argv[1]), Path(sys.argv[2]), resume=True, progress=False)
"""


def test_the_second_of_two_resumed_processes_is_told_who_holds_the_run(recipe_file, tmp_path, capsys):
    run = tmp_path / "run"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", SLOW, recipe_file, run], **pipes) as first:
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
