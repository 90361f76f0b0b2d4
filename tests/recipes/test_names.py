"""A recipe is named by its path, by a shipped name, or as the README writes it."""

import pytest

from tessera.recipes.recipe_files import SHIPPED, find_recipe
from tests.refusals import refused


@pytest.mark.parametrize("name", ["tiny", "recipes/tiny.yaml"])
def test_a_shipped_recipe_is_found_from_anywhere_behind_one_of_its_name_here(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_recipe(name) == SHIPPED / "tiny.yaml"
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "tiny.yaml").touch()
    assert find_recipe(name).resolve() == tmp_path / "recipes" / "tiny.yaml"


@pytest.mark.parametrize(
    "name", ["mine/tiny.yaml", "recipes/mine/tiny.yaml", "tiny.yaml", "recipes/tiny.yml", "recipes"]
)
def test_another_path_never_becomes_a_shipped_recipe(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused("no such file", find_recipe, name)


def test_a_misspelt_name_is_guessed():
    refused(r"recipe tinny: no such file. Did you mean 'tiny'\?", find_recipe, "tinny")
