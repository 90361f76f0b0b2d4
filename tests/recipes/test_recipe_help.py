"""Every key of a recipe says what it means."""

from dataclasses import fields

import pytest

from tessera.base.dataclass_io import MEANING
from tessera.data.tokenizers import TokenizerSpec
from tessera.models.registry import strict_configs
from tessera.recipes.help import recipe_help
from tessera.recipes.sections import DataSection, Recipe, TrainingSection


@pytest.mark.parametrize("section", [Recipe, DataSection, TokenizerSpec, TrainingSection])
def test_every_field_has_a_meaning(section):
    for item in fields(section):
        assert len(item.metadata.get(MEANING, "")) > 5, item.name


def test_the_help_names_every_key_with_type_default_and_meaning():
    text = recipe_help()
    for prefix, section in (("data", DataSection), ("tokenizer", TokenizerSpec), ("training", TrainingSection)):
        for item in fields(section):
            assert f"  {prefix}.{item.name}: " in text
            assert item.metadata[MEANING][:20] in text
    assert "  training.betas: a list of 2 values; default [0.9, 0.95]" in text
    assert "  training.compile: true or false; default false" in text
    assert "  seed: an integer; default 0" in text


def test_the_help_names_the_fields_of_every_model_of_the_library():
    text = recipe_help()
    for config in strict_configs():
        assert f"model: {{type: {config.model_type}, ...}}" in text
    assert "  model.num_persistent_slots: an integer; default 2688" in text
    assert "  model.positions: text; default 'absolute'" in text


def test_defaults_are_not_shared():
    assert Recipe("a", {}).training.report_to is not Recipe("b", {}).training.report_to
