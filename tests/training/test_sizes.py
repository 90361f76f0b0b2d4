"""What is trained on how much is said before the first step, also without a terminal."""

from tessera.recipes.recipe import read_recipe
from tessera.training.run import train

TOKENS = 4 * 16  # of a step


def test_sizes_come_before_the_first_step(recipe_file, tmp_path, capsys, change_losses):
    before = []

    def heard(step, loss):
        before.append(capsys.readouterr().err)
        return loss

    change_losses(heard)
    recipe = read_recipe(recipe_file, ["training.steps=12"])
    summary = train(recipe, tmp_path / "run")
    tokens = 12 * TOKENS
    assert f"tiny: {summary.parameters:,} parameters, {tokens} training tokens" in before[0]
    assert f"({tokens / summary.parameters:.3g} per parameter), 12 steps (Ctrl-C stops; --resume goes on)" in before[0]


def test_without_progress_nothing_is_said(recipe_file, tmp_path, capfd):
    train(read_recipe(recipe_file, ["training.steps=12"]), tmp_path / "run", progress=False)
    err = capfd.readouterr().err  # with the bars of transformers
    assert "parameters" not in err
