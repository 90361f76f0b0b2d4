"""Curricula as values, and training by them."""

from dataclasses import asdict

import pytest
import torch
import yaml

from tessera.data.windows import ValidationWindows
from tessera.evaluation.loss import loss_by_position
from tessera.recipes.recipe import read_recipe
from tessera.recipes.sections import Curriculum, Stage
from tessera.training.fit import train_curriculum
from tessera.training.optimizer import FitOptions
from tessera.training.run_data import evaluation_text
from tests.training.conftest import opened


def test_lengths_are_a_function_of_the_step_and_fill_their_range():
    stage = Stage(4, 10, min_length=2)
    lengths = [stage.length_at(step, seed=0) for step in range(200)]
    torch.manual_seed(5)
    assert lengths == [stage.length_at(step, seed=0) for step in range(200)]
    assert set(lengths) == {2, 3, 4}
    assert lengths != [stage.length_at(step, seed=1) for step in range(200)]


def test_a_stage_counts_segments_of_the_model_also_where_the_recipe_does_not_say_their_size(recipe_file, tmp_path):
    """They were of data.context tokens: two of them were no whole segment, and no memory was ever read."""
    plain = yaml.safe_load(recipe_file.read_text())
    plain["data"]["validation_fraction"] = 0.5
    plain["model"] = {"type": "rmt", "base": plain["model"]}
    plain["training"] = {"batch_size": 1, "curriculum": [{"length": 2, "min_length": 2, "steps": 1}]}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({**plain, "name": "run"}))
    recipe = read_recipe(tmp_path / "recipe.yaml")
    data, model, stage = opened(recipe, tmp_path)
    two_segments = 2 * model.config.segment_size
    assert data.batch_tokens(stage, 0, 0) == two_segments
    assert evaluation_text(tmp_path).context == two_segments


class Growing(torch.nn.Module):
    """Its one weight grows by the learning rate in every step; a stage's score is the weight over its length."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))


def test_stages_end_at_their_target_and_start_from_the_last_best(tmp_path):
    model, seen, shares = Growing(), [], []
    stages = (Stage(2, 50, target=0.49, learning_rate=1.0), Stage(4, 4, learning_rate=0.5))
    options = FitOptions(steps=1, learning_rate=1.0, warmup_ratio=0.0, decay="constant", evaluate_every=1)

    def loss_at(stage, number, step):
        seen.append((number, step))
        return -model.weight

    score = lambda stage: min(1.0, model.weight.item() / stage.length)  # noqa: E731
    report = lambda share, note: shares.append(share)  # noqa: E731
    records = train_curriculum(model, Curriculum(stages), options, tmp_path, loss_at, score, report)
    # One step takes the weight to 1: half of 2. Four shorter ones, which is all the second stage has, take it to 3.
    assert [record["steps_done"] for record in records] == [1, 4]
    assert [record["best"] for record in records] == pytest.approx([0.5, 0.75])
    assert seen == [(0, 0), (1, 0), (1, 1), (1, 2), (1, 3)]
    assert model.weight.item() == pytest.approx(3.0)
    assert records[1]["checks"][-1] == (4, pytest.approx(0.75))
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert asdict(stages[0]).items() <= records[0].items()


def test_documents_of_a_text_with_a_curriculum_are_told_apart(recipe_file, tmp_path):
    """As without one: in the batches, which count every token with a label once, and in the validation."""
    plain = yaml.safe_load(recipe_file.read_text())
    plain["data"] |= {"context": 32, "separator": "\n", "document_ids": True}
    plain["training"] = {"batch_size": 4, "micro_batch_size": 1, "evaluate_sequences": 3, "precision": "fp32"}
    plain["training"]["curriculum"] = [{"length": 2, "min_length": 2, "steps": 1}]
    recipe_file.write_text(yaml.safe_dump(plain))
    recipe = read_recipe(recipe_file)
    data, model, stage = opened(recipe, tmp_path)
    model.eval()
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
