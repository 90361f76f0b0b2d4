"""Curricula on plain text."""

import pytest
import torch
import yaml

from tessera.data.windows import ValidationWindows
from tessera.evaluation.loss import loss_by_position
from tessera.recipes.recipe import read_recipe
from tessera.training import staged_data
from tessera.training.initial_model import starting_model


def test_documents_of_a_text_with_a_curriculum_are_told_apart(recipe_file, tmp_path):
    """As without one: in the batches, which count every token with a label once, and in the validation."""
    plain = yaml.safe_load(recipe_file.read_text())
    plain["data"] |= {"context": 32, "separator": "\n", "document_ids": True}
    plain["training"] = {"batch_size": 4, "micro_batch_size": 1, "evaluate_sequences": 3, "precision": "fp32"}
    plain["training"]["curriculum"] = [{"length": 2, "min_length": 2, "steps": 1}]
    recipe_file.write_text(yaml.safe_dump(plain))
    recipe = read_recipe(recipe_file)
    data, stage = staged_data.open_data(recipe, tmp_path, saved_tokenizer=False), recipe.training.curriculum[0]
    model = starting_model(recipe, data.tokenizer, context=64).eval()
    read, losses, forward = [], list(data.losses(model, stage, 0, 0)), model.forward
    model.forward = lambda **inputs: read.append(inputs) or forward(**inputs)
    assert torch.equal(sum(data.losses(model, stage, 0, 0)), sum(losses))
    inputs = {name: torch.cat([part[name] for part in read]) for name in ("input_ids", "labels", "document_ids")}
    assert inputs["document_ids"].max() >= 1
    begins = inputs["document_ids"].diff(dim=1) != 0
    assert torch.equal(inputs["labels"][:, 1:] == -100, begins)
    del model.forward
    torch.testing.assert_close(sum(losses), model(**inputs).loss)
    windows = ValidationWindows(data.corpus.validation, 64, 3, document_ids=True)
    expected = loss_by_position(model, windows, 1).mean
    assert data.validation(model, stage)["validation_loss"] == pytest.approx(expected)
    assert abs(loss_by_position(model, ValidationWindows(data.corpus.validation, 64, 3), 1).mean - expected) > 1e-4
