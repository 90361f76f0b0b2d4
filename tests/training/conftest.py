"""A corpus of one small file and a recipe that trains on it in well under a second."""

import pytest
import yaml

from tessera.recipes.recipe import read_recipe
from tessera.training import staged_data
from tessera.training.initial_model import starting_model
from tessera.training.run import train
from tessera.training.training_data import TextData
from tests.cli.conftest import corpus, run_folder  # noqa: F401 (fixtures)
from tests.short_books import beginnings, short_books  # noqa: F401 (fixtures)

TINY = {
    "name": "tiny",
    "model": {"type": "memory_mosaic", "hidden_size": 16, "num_layers": 1, "num_heads": 2, "num_persistent_slots": 8},
    "tokenizer": {"type": "byte"},
    "data": {"context": 16, "validation_fraction": 0.2},
    "training": {
        "steps": 6,
        "batch_size": 4,
        "learning_rate": 0.01,
        "warmup_steps": 2,
        "precision": "fp32",
        "log_every": 1,
        "evaluate_every": 3,
        "evaluate_sequences": 4,
        "checkpoint_every": 2,
        "keep_checkpoints": 9,
    },
}


@pytest.fixture
def recipe_file(tmp_path):
    """Path of a tiny recipe whose text lies beside it."""
    text = "".join(
        f"Once there were {number} kings, and {number * 7 % 11} of them were wise.\n" for number in range(60)
    )
    (tmp_path / "text.txt").write_text(text)
    recipe = {**TINY, "data": {**TINY["data"], "source": str(tmp_path / "text.txt")}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(recipe))
    return tmp_path / "tiny.yaml"


@pytest.fixture
def go(recipe_file, tmp_path):
    """Train the tiny recipe with overrides into `tmp_path / folder`."""

    def start(*overrides, folder="run", **options):
        return train(read_recipe(recipe_file, overrides), tmp_path / folder, progress=False, **options)

    return start


@pytest.fixture
def change_losses(monkeypatch):
    """`change_losses(change)` puts `change(step, loss)` in place of each loss of a plain run; it may also raise."""

    def patch(change):
        original = TextData.losses

        def losses(self, model, stage, number, step):
            for loss in original(self, model, stage, number, step):
                yield change(step, loss)

        monkeypatch.setattr(TextData, "losses", losses)
        return lambda: monkeypatch.setattr(TextData, "losses", original)

    return patch


def opened(recipe, folder):
    """The data of a recipe with a curriculum, its model, and its first stage."""
    data, stage = staged_data.open_data(recipe, folder, saved_tokenizer=False), recipe.training.curriculum[0]
    return data, starting_model(recipe, data.tokenizer, context=stage.length * data.segment), stage


@pytest.fixture
def recipe_of(tmp_path):
    """The recipe of a mapping, with overrides."""

    def read(plain: dict, *overrides: str):
        path = tmp_path / "staged.yaml"
        path.write_text(yaml.safe_dump(plain))
        return read_recipe(path, overrides)

    return read
