"""Passwords hidden in novels, asked of a small mosaic that has learned to find such: which sentence is cited.

`python -m benchmarks.citations` asks 1,000 questions in long texts, and as many in short ones.
"""

from random import Random

import pytest

from benchmarks.citations import measured, novels
from tessera.memory_files import Memory
from tessera.models.saving.loading import load_model, load_tokenizer
from tessera.recipes.recipe import read_recipe
from tessera.training.run import train

QUESTIONS = 60


@pytest.mark.slow
def test_the_first_citation_is_the_hidden_sentence(tmp_path):
    train(read_recipe("book-reader", []), tmp_path / "reader", progress=False)
    memory = Memory(load_model(tmp_path / "reader"), load_tokenizer(tmp_path / "reader"))
    *_, came = measured(memory, novels("validation"), "short", QUESTIONS, Random(0))
    assert (came["present"], came["absent"]) == (QUESTIONS, QUESTIONS)
    assert came["right"] >= 0.95 * QUESTIONS
    assert came["first_citation_is_the_fact"] >= 0.99 * QUESTIONS
    assert came["absent_yet_in_text"] <= 0.1 * QUESTIONS
