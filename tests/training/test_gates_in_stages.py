"""What a curriculum does with the gates of an ARMT: writes that cost, and a threshold for them."""

import json

import pytest
import torch

from tessera.base.checkpoints import FOLDER
from tessera.base.errors import TesseraError
from tessera.base.files import remove
from tessera.training import staged_data
from tessera.training.run import train
from tessera.training.run_log import MetricsFile
from tests.training.conftest import opened
from tests.training.test_staged_run import BASE, LOSSES, QUESTIONS, STRETCH, prediction_loss

pytestmark = pytest.mark.usefixtures("short_books")


def test_writes_cost_how_probable_it_is_that_their_gates_open(recipe_of, tmp_path, monkeypatch):
    losses, scores = [], []

    def seen(self, model, stage, number, step):
        (value,) = LOSSES(self, model, stage, number, step)
        checked = self.validation(model, stage)
        scores.append(self.predictions(model, stage)["score"] - checked["score"])
        assert scores[-1] == pytest.approx(checked.get("validation_penalty", 0))
        losses.append(value.item() - prediction_loss(self, model, stage, number, step).item())
        return value

    monkeypatch.setattr(staged_data.StagedQuestions, "losses", seen)
    stages = "{length: 2, min_length: 2, steps: 1}, {length: 2, min_length: 2, steps: 1, model: {gate_penalty: 10.0}}"
    train(recipe_of(QUESTIONS, f"training.curriculum=[{stages}]", STRETCH), tmp_path / "run", progress=False)
    assert losses[0] == 0
    assert losses[1] == pytest.approx(8.3, abs=1.0)  # a fresh gate opens with sigmoid(2/3 log(1.1 / 0.1))
    assert scores[0] == 0
    assert scores[1] == pytest.approx(8.3, abs=1.0)
    checks = [r for r in MetricsFile(tmp_path / "run" / "metrics.jsonl").read() if "validation_loss" in r]
    assert [round(r.get("validation_penalty", 0)) for r in checks] == [0, 8]


def test_only_writes_with_a_gradient_cost(recipe_of, tmp_path):
    stages = "{length: 4, min_length: 4, steps: 1}"
    changes = (STRETCH, "model.gate_penalty=10.0", "model.base.num_layers=2")
    recipe = recipe_of(QUESTIONS, f"training.curriculum=[{stages}]", *changes)
    data, model, stage = opened(recipe, tmp_path)
    openings = []
    for memory in model.memories:
        memory.gate.register_forward_hook(lambda gate, scores, strength: openings.append(gate.opening(*scores)))
    (loss,) = data.losses(model, stage, 0, 0)
    torch.testing.assert_close(loss, prediction_loss(data, model, stage, 0, 0) + 10 * torch.cat(openings[:6]).mean())
    openings.clear()
    model.config.backprop_segments = 2
    (loss,) = data.losses(model, stage, 0, 0)
    with_gradient = [opening.requires_grad for opening in openings]
    assert with_gradient == [False, False, False, False, True, True]  # two layers; the last of four segments stays open
    of_all, of_last = (10 * torch.cat(some).mean() for some in (openings, openings[4:]))
    assert not torch.isclose(of_all, of_last)
    torch.testing.assert_close(loss, prediction_loss(data, model, stage, 0, 0) + of_last)


def test_without_a_write_there_is_no_cost(recipe_of, tmp_path):
    penalty = "model.gate_penalty=10.0"
    stages = "training.curriculum=[{length: 1, steps: 1}]"
    recipe = recipe_of(QUESTIONS, stages, STRETCH, penalty, "model.segment_size=64")
    data, model, stage = opened(recipe, tmp_path)
    (loss,) = data.losses(model, stage, 0, 0)
    assert torch.equal(loss, prediction_loss(data, model, stage, 0, 0))


def test_a_threshold_holds_from_its_stage_on_also_after_a_stop(recipe_of, tmp_path, monkeypatch):
    thresholds = []

    def seen(self, model, stage, number, step):
        thresholds.append(([memory.gate.threshold for memory in model.memories], number))
        return LOSSES(self, model, stage, number, step)

    monkeypatch.setattr(staged_data.StagedQuestions, "losses", seen)
    run = tmp_path / "run"
    stage = "length: 2, min_length: 2, steps: 1"
    stages = f"{{{stage}}}, {{{stage}, model: {{strength_threshold: 0.6}}}}, {{{stage}}}"
    recipe = recipe_of(QUESTIONS, f"training.curriculum=[{stages}]")
    train(recipe, run, progress=False)
    assert thresholds == [([0.0], 0), ([0.6], 1), ([0.6], 2)]
    assert json.loads((run / "config.json").read_text())["strength_threshold"] == 0.6

    weights = (run / "model.safetensors").read_bytes()
    (run / "model.safetensors").unlink()
    remove(run / FOLDER / "checkpoint-3")
    thresholds.clear()
    train(recipe, run, resume=True, progress=False)
    assert thresholds == [([0.6], 2)]
    assert (run / "model.safetensors").read_bytes() == weights


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"type": "rmt", "segment_size": 32, "num_memory_tokens": 2, "base": BASE}, "built rmt .* Known: backprop_seg"),
        (BASE, "built memory_mosaic .* Known: inverse_bandwidth_scale"),
    ],
)
def test_only_an_armt_has_gates_of_writing(recipe_of, tmp_path, model, message):
    stage = "training.curriculum=[{length: 2, min_length: 2, steps: 1, model: {gate_penalty: 0.0}}]"
    with pytest.raises(TesseraError, match=f"gate_penalty must be a setting that a {message}"):
        train(recipe_of({**QUESTIONS, "model": model}, stage), tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()
