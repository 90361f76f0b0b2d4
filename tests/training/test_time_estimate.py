"""What a run costs is said before and not after: sizes first, then the time, also without a terminal."""

import re

import pytest

from tessera.recipes.recipe import read_recipe
from tessera.training.run import train
from tessera.training.run_log import TimeEstimate

TOKENS = 4 * 16  # of a step


def estimate(recipe_file, *changes, sequences=4):
    return TimeEstimate(read_recipe(recipe_file, changes), sequences, segment=16)


def said(estimate, *durations):
    """What is said after each of the first steps."""
    return [estimate.after_step(0, step, seconds, TOKENS) for step, seconds in enumerate(durations, start=1)]


def test_sizes_come_before_the_first_step_and_the_time_soon_after(recipe_file, tmp_path, capsys, change_losses):
    before = []

    def heard(step, loss):
        before.append(capsys.readouterr().err)
        return loss

    change_losses(heard)
    recipe = read_recipe(recipe_file, ["training.steps=12"])
    summary = train(recipe, tmp_path / "run")
    tokens = 12 * TOKENS
    assert f"tiny: {summary.parameters:,} parameters, {tokens} training tokens" in before[0]
    assert f"({tokens / summary.parameters:.3g} per parameter), 12 steps" in before[0]
    assert "expected" not in "".join(before[:3])
    assert re.search(r"expected: under a minute at [\d,]+ tokens/s \(Ctrl-C stops; --resume goes on\)", "".join(before))


def test_without_progress_neither_is_said(recipe_file, tmp_path, capfd):
    train(read_recipe(recipe_file, ["training.steps=12"]), tmp_path / "run", progress=False)
    err = capfd.readouterr().err  # with the bars of transformers
    assert "parameters" not in err
    assert "expected" not in err


def test_a_run_of_31_hours_says_so_after_six_steps(recipe_file):
    long = estimate(recipe_file, "training.steps=100006", "training.evaluate_every=1000000")
    lines = said(long, 2.0, 1.116, 1.116, 1.116, 1.116, 1.116, 1.116)  # the slow first one is not counted
    assert lines == [*[""] * 5, "expected: 31 hours at 57 tokens/s (Ctrl-C stops; --resume goes on)", ""]


@pytest.mark.parametrize(("compiled", "line"), [("false", "1,000 days at 1 tokens/s"), ("true", "")])
def test_one_step_of_minutes_is_enough_unless_it_compiled(recipe_file, compiled, line):
    changes = ["training.steps=1440001", "training.evaluate_every=9000000", f"training.compile={compiled}"]
    (first,) = said(estimate(recipe_file, *changes), 60.0)
    assert line in first
    assert bool(first) == bool(line)


def test_validations_count(recipe_file):
    plain = estimate(recipe_file, "training.steps=100", "training.evaluate_every=10", sequences=120)
    # 50 steps of 36 s, and five validations that take as long as 10 steps each
    assert plain.time_left(0, 50, TOKENS / 36.0).startswith("expected: 60 minutes at 2 tokens/s")


def test_longer_stages_take_longer(recipe_file):
    stages = "training.curriculum=[{length: 1, steps: 10}, {length: 6, min_length: 4, steps: 10}]"
    own = ("training.steps=20", "training.learning_rate=1e-3", "training.warmup_steps=100")
    staged = estimate(recipe_file, stages, *own, "training.evaluate_every=100")
    # Five steps of one segment and ten of five, 36 s per segment
    assert staged.time_left(0, 5, TOKENS / 36.0).startswith("expected: 33 minutes at most at 2 tokens/s")
    assert staged.time_left(1, 5, TOKENS / 36.0).startswith("expected: 15 minutes at most")
