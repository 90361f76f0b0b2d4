"""Every key of a recipe says what it means."""

from dataclasses import fields

from tessera.base.dataclass_io import MEANING
from tessera.data.tokenizers import TokenizerSpec
from tessera.models.registry import strict_configs
from tessera.recipes.recipe import recipe_help
from tessera.recipes.sections import DataSection, Recipe, TrainingSection


def test_the_help_names_every_key_with_type_default_and_meaning():
    text = recipe_help()
    for prefix, section in (("data.", DataSection), ("tokenizer.", TokenizerSpec), ("training.", TrainingSection)):
        for item in fields(section):
            assert f"  {prefix}{item.name}: " in text
            assert len(item.metadata.get(MEANING, "")) > 5, item.name
            assert item.metadata[MEANING][:20] in text
    assert all(len(item.metadata.get(MEANING, "")) > 5 for item in fields(Recipe))
    assert "  training.betas: a list of 2 values; default [0.9, 0.95]" in text
    assert "  training.compile: true or false; default false" in text
    assert "  seed: an integer; default 0" in text
    for config in strict_configs():
        assert f"model: {{type: {config.model_type}, ...}}" in text
    assert "  model.num_persistent_slots: an integer; default 2688" in text
    assert "  extends: text; default none\n" in text
    assert text.count("  model.base: a mapping or text; required\n") == 3  # ARMT, RMT, PRMT
    assert "base_config: " not in text.replace("        base_config: ", "")
    assert all(f" {positions} " in text for positions in ("absolute", "rope", "alibi"))
