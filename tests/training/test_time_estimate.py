"""What a run costs is said before and not after: sizes first, then the time, also without a terminal."""

import re
from types import SimpleNamespace

import pytest

from tessera.recipes.recipe import read_recipe
from tessera.training.run import train
from tessera.training.time_estimate import Expectation
from tessera.training.trainer import RecipeTrainer

TRAINER = SimpleNamespace(is_world_process_zero=True, global_step=0)


@pytest.fixture
def clock(monkeypatch):
    """Training steps of the durations that are put into the list, and no others."""
    durations, now = [], [0.0]

    def step(expectation):
        expectation.on_step_begin(None, TRAINER, None)
        now[0] += durations.pop(0)
        TRAINER.global_step += 1
        expectation.on_step_end(None, TRAINER, None)

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    monkeypatch.setattr(TRAINER, "global_step", 0)
    return durations, step


def test_sizes_come_before_the_first_step_and_the_time_soon_after(recipe_file, tmp_path, capsys, monkeypatch):
    before = []
    original = RecipeTrainer.training_step

    def training_step(self, *arguments):
        before.append(capsys.readouterr().err)
        return original(self, *arguments)

    monkeypatch.setattr(RecipeTrainer, "training_step", training_step)
    recipe = read_recipe(recipe_file, ["training.steps=12"])
    summary = train(recipe, tmp_path / "run")
    tokens = 12 * 4 * 16
    assert f"tiny: {summary.parameters:,} parameters, {tokens} training tokens" in before[0]
    assert f"({tokens / summary.parameters:.3g} per parameter), 12 steps" in before[0]
    assert "expected" not in "".join(before[:3])
    assert re.search(r"expected: under a minute at [\d,]+ tokens/s \(Ctrl-C stops; --resume goes on\)", "".join(before))


def test_without_progress_neither_is_said(recipe_file, tmp_path, capfd):
    train(read_recipe(recipe_file, ["training.steps=12"]), tmp_path / "run", progress=False)
    err = capfd.readouterr().err  # with the bars of transformers
    assert "parameters" not in err
    assert "expected" not in err


def test_a_run_of_31_hours_says_so_after_six_steps(recipe_file, clock, capsys):
    durations, step = clock
    recipe = read_recipe(recipe_file, ["training.steps=100006", "training.evaluate_every=1000000"])
    expectation = Expectation(recipe, sequences=4)
    durations += [2.0, 1.116, 1.116, 1.116, 1.116, 1.116]  # the slow first one is not counted
    for _ in range(5):
        step(expectation)
    assert capsys.readouterr().err == ""
    step(expectation)
    assert capsys.readouterr().err == "expected: 31 hours at 57 tokens/s (Ctrl-C stops; --resume goes on)\n"


@pytest.mark.parametrize(("compiled", "said"), [("false", "1000 days at 1 tokens/s"), ("true", "")])
def test_one_step_of_minutes_is_enough_unless_it_compiled(recipe_file, clock, capsys, compiled, said):
    durations, step = clock
    changes = ["training.steps=1440001", "training.evaluate_every=9000000", f"training.compile={compiled}"]
    expectation = Expectation(read_recipe(recipe_file, changes), sequences=4)
    durations += [60.0]
    step(expectation)
    err = capsys.readouterr().err
    assert said.replace("1000", "1,000") in err
    assert bool(err) == bool(said)


def test_validations_count(recipe_file):
    expectation = Expectation(read_recipe(recipe_file, ["training.steps=100", "training.evaluate_every=10"]), 120)
    # 50 steps of 36 s, and five validations that take as long as 10 steps each
    assert expectation.time_left(50, 36.0).startswith("expected: 60 minutes at 2 tokens/s")
