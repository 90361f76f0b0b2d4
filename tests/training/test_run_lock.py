"""One process per run folder: the second is told who holds it."""

import os

import pytest

from tessera.base.errors import TesseraError
from tessera.cli.main import main
from tessera.recipes.recipe import read_recipe
from tessera.training.run import train
from tessera.training.training_data import TextData


def train_when_told(recipe_file, run, ready, go_on):
    """Resume in a fork that says before its first step that it trains, and waits for an answer; its process."""
    child = os.fork()
    if child:
        return child
    try:
        original, waited = TextData.losses, []

        def losses(self, *arguments):
            if not waited:
                waited.append(os.write(ready, b"training"))
                os.read(go_on, 1)
            return original(self, *arguments)

        TextData.losses = losses
        train(read_recipe(recipe_file), run, resume=True, progress=False)
        os._exit(0)
    finally:
        os._exit(1)


def test_the_second_of_two_resumed_processes_is_told_who_holds_the_run(recipe_file, tmp_path, capsys):
    run, (said, ready), (answer, go_on) = tmp_path / "run", os.pipe(), os.pipe()
    first = train_when_told(recipe_file, run, ready, answer)
    os.close(ready)
    assert os.read(said, 8) == b"training"
    assert main(["train", str(recipe_file), "--output", str(run), "--resume"]) == 2
    error = capsys.readouterr().err
    assert f"must be used by one process at a time; process {first} on " in error
    assert len(error.strip().splitlines()) == 1
    for options in ({"overwrite": True}, {}):
        with pytest.raises(TesseraError, match=f"process {first} on .* has been using it since 20"):
            train(read_recipe(recipe_file), run, progress=False, **options)
    os.write(go_on, b"1")
    assert os.waitpid(first, 0)[1] == 0
    train(read_recipe(recipe_file), run, resume=True, progress=False)
