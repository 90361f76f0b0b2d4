"""How accuracy on new classes is measured, and what is shown of it."""

from dataclasses import replace

import pytest

from tessera.papers.experiment import Record, RunSelection
from tessera.papers.many_shot.report import BUDGETS, EXPERIMENT, best, build, evaluate
from tessera.papers.many_shot.task import STRATEGIES
from tests.tasks.cases import case_of

SMOKE = BUDGETS["smoke"]


def test_every_number_of_shots_and_strategy_is_tested():
    scores = evaluate(build(SMOKE).eval(), SMOKE, type("Context", (), {"report": staticmethod(lambda *_: None)}))
    assert list(scores) == ["1", "2"]
    for by_strategy in scores.values():
        assert tuple(by_strategy) == STRATEGIES
        for one in by_strategy.values():
            assert one["exact_match"][2] == SMOKE.contexts
            assert 0 <= one["exact_match"][0] <= one["likeliest_label"][0] <= 1


def test_tests_are_of_other_classes_than_training():
    training, test = SMOKE.trained_tasks()[0], SMOKE.tested_task(2, "space, fixed")
    trained = case_of(training).held_apart(training.sample(50, 0))
    tested = case_of(test).held_apart(test.sample(50, 0, "test"))
    assert not trained & tested
    assert [task.delimiter for task in SMOKE.trained_tasks()] == ["newline", "space"]


def record(model, seed, highest, shots=(1, 2), strategy=1, **more):
    """Scores of 0.1, but `highest` at the last number of shots with one strategy."""
    settings = replace(BUDGETS["cpu"], model=model, seed=seed)
    scores: dict = {}
    for count in shots:
        for place, name in enumerate(STRATEGIES):
            mean = highest if (place, count) == (strategy, shots[-1]) else 0.1
            cell = {score: [mean, 0.01, 16] for score in ("exact_match", "likeliest_label")}
            scores.setdefault(str(count), {})[name] = cell
    return Record(settings, {"parameters": 7, "scores": scores, "training": {"loss": 1.25}} | more, {})


def test_the_best_strategy_is_that_of_the_mean_over_seeds():
    records = {"a": record("mosaic_v2", 0, 0.9), "b": record("mosaic_v2", 1, 0.6, strategy=2)}
    (curve,) = best(records, "exact_match")
    assert curve.notes == (2,)  # seeds
    assert curve.points[2].mean == pytest.approx(0.5)  # 0.9 and 0.1 with one strategy, 0.1 and 0.6 with another
    assert curve.points[2].standard_error == pytest.approx(0.4)


def test_models_of_a_budget_have_one_size():
    counts = []
    for run in EXPERIMENT.runs(RunSelection("cpu", seeds=1)):
        counts.append(sum(parameter.numel() for parameter in build(run.configuration).parameters()))
    assert max(counts) / min(counts) < 1.02
    assert max(counts) < 2_000_000
