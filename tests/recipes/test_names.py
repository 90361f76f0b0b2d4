"""A recipe is named by its path, by a shipped name, or as the README writes it."""

import pytest

from tessera.base.errors import TesseraError
from tessera.recipes.recipe_files import SHIPPED, find_recipe


@pytest.mark.parametrize("name", ["tiny", "recipes/tiny.yaml"])
def test_a_shipped_recipe_is_found_from_anywhere(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_recipe(name) == SHIPPED / "tiny.yaml"


@pytest.mark.parametrize("name", ["tiny", "recipes/tiny.yaml"])
def test_a_recipe_of_the_same_name_here_comes_first(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "tiny.yaml").touch()
    assert find_recipe(name).resolve() == tmp_path / "recipes" / "tiny.yaml"


@pytest.mark.parametrize(
    "name", ["mine/tiny.yaml", "recipes/mine/tiny.yaml", "tiny.yaml", "recipes/tiny.yml", "recipes"]
)
def test_another_path_never_becomes_a_shipped_recipe(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TesseraError, match="no such file"):
        find_recipe(name)


def test_a_misspelt_name_is_guessed():
    with pytest.raises(TesseraError, match=r"recipe tinny: no such file. Did you mean 'tiny'\?"):
        find_recipe("tinny")
