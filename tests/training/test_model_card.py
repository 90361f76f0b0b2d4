"""The README.md beside trained weights: true numbers, text that cannot break it, and nobody's own file replaced."""

from dataclasses import replace

import yaml

from tessera.recipes.sections import DataSection, Recipe
from tessera.training.model_card import RunSummary, model_card, write_model_card

RECIPE = Recipe(name="tiny", model={"type": "memory_mosaic"})
SUMMARY = RunSummary("tiny", "runs/tiny", 4_200_000, 10, 5_120, 0, 3.21, 1.23, None)


def test_it_says_what_the_run_was():
    card = model_card(RECIPE, SUMMARY)
    header = yaml.safe_load(card.split("---")[1])
    assert header == {"library_name": "transformers", "tags": ["tessera", "memory_mosaic"]}
    for text in ("# `tiny`", "4,200,000 parameters", "| text | `stories` |", "5,120 (10 steps", "3.2100", "1.2300"):
        assert text in card


def test_modules_of_ones_own_are_imported_first():
    card = model_card(RECIPE, SUMMARY, ["my_package.half"])
    assert "import my_package.half" in card
    assert '--prompt "Once upon a time" --import my_package.half`' in card
    assert "--import" not in model_card(RECIPE, SUMMARY)


def test_names_cannot_break_it():
    recipe = replace(RECIPE, name="a`b|c\nd", data=DataSection(source=["x`", "{y}"]))
    card = model_card(recipe, SUMMARY)
    assert "# `a'b\\|c d`" in card
    assert """| text | `["x'", "{y}"]` |""" in card


def test_the_folders_of_this_machine_are_not_in_it():
    recipe = replace(RECIPE, data=DataSection(source=["/home/me/a.txt", "b/c.txt"]))
    assert """| text | `["a.txt", "b/c.txt"]` |""" in model_card(recipe, SUMMARY)
    assert "| text | `a.txt` |" in model_card(replace(RECIPE, data=DataSection(source="/home/me/a.txt")), SUMMARY)


def test_a_model_of_questions_is_asked_and_has_words():
    task = {"name": "questions", "file": "/home/me/own.jsonl"}
    card = model_card(replace(RECIPE, data=DataSection(task=task)), SUMMARY)
    assert 'On the command line: `tessera ask FOLDER "QUESTION" --text FILE`.' in card
    assert "| tokenizer | words of the task, in lower case |" in card
    assert '| text | `{"name": "questions", "file": "own.jsonl"}` |' in card
    assert "tessera generate" not in card
    assert 'tessera generate FOLDER --prompt "Once upon a time"`' in model_card(RECIPE, SUMMARY)


def test_a_file_of_somebody_else_stays(tmp_path):
    write_model_card(tmp_path, RECIPE, SUMMARY)
    write_model_card(tmp_path, replace(RECIPE, name="other"), SUMMARY)
    assert "# `other`" in (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").write_text("mine")
    write_model_card(tmp_path, RECIPE, SUMMARY)
    assert (tmp_path / "README.md").read_text() == "mine"
