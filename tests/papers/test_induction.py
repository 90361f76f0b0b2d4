"""What is trained, scored and shown in the induction experiment."""

from dataclasses import replace

import pytest
import torch

from tessera.models.sizes import num_parameters
from tessera.papers.curves import learning_curve
from tessera.papers.experiment import Record, RunSelection
from tessera.papers.induction.report import EXPERIMENT, SCORED_AT_ONCE, accuracies, build, scores_of
from tessera.papers.induction.task import Induction
from tessera.training.fit import FitOptions, fit


def record(model="mosaic-1", seed=0, checks=((50, 0.8), (100, 0.05)), accuracy=0.95):
    settings = EXPERIMENT.runs(RunSelection("cpu", models=(model,)))[0].configuration
    scores = {name: [accuracy, 0.01, 9] for name in ("accuracy", "first_accuracy", "loss", "other_loss")}
    training = {"checks": [list(check) for check in checks], "best": min(e for _, e in checks), "seconds": 90.0}
    outcome = {"parameters": 7, "training": training, "scores": scores}
    return Record(replace(settings, seed=seed), outcome, {})


def test_models_have_as_many_parameters_for_each_block():
    sizes = {}
    for run in EXPERIMENT.runs(RunSelection("cpu", seeds=1)):
        model = build(run.configuration)
        sizes[run.configuration.model] = num_parameters(model)
    assert len(sizes) == 5
    assert sizes["mosaic-1"] == pytest.approx(sizes["transformer_rope-1"], rel=0.03)
    assert sizes["transformer-1"] - sizes["transformer_rope-1"] == 64 * 64, "learned positions"


def test_scores_do_not_depend_on_how_many_are_scored_at_once():
    settings = EXPERIMENT.runs(RunSelection("smoke"))[0].configuration
    model, task = build(settings).eval(), settings.task
    examples = task.sample(SCORED_AT_ONCE + 3, 0)
    with torch.no_grad():
        at_once = task.scores(model(input_ids=examples.tokens).logits, examples)
    for name, values in scores_of(model, task, examples).items():
        torch.testing.assert_close(values, at_once[name], equal_nan=True)


@pytest.mark.grid
def test_a_block_of_memories_learns_induction(tmp_path):
    settings = EXPERIMENT.runs(RunSelection("smoke"))[0].configuration
    task = Induction(32, 3)
    model = build(replace(settings, task=task, hidden_size=32))
    options = FitOptions(200, 1e-2, warmup_ratio=0.05, clip=1.0, scalar_learning_rate_scale=10.0)

    def loss_at(step):
        batch = task.sample(16, step)
        return model(input_ids=batch.tokens, labels=batch.labels).loss

    fit(model, loss_at, options, tmp_path)
    assert scores_of(model, task, task.sample(64, 0, "test"))["accuracy"].nanmean() > 0.9


def test_curves_are_means_over_the_validations_that_all_seeds_have():
    shorter = record(seed=1, checks=((50, 0.6),))
    curve = learning_curve([accuracies(record()), accuracies(shorter)])
    assert {step: round(point.mean, 6) for step, point in curve.items()} == {50: 0.3}
