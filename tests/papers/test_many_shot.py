"""How accuracy on new classes is measured, and what is shown of it."""

from dataclasses import replace

import pytest
import torch

from tessera.models.small_models import build_small_model
from tessera.papers.experiment import Record, RunSelection
from tessera.papers.many_shot.evaluate import evaluate, next_logits
from tessera.papers.many_shot.report import curves, tables
from tessera.papers.many_shot.run import EXPERIMENT, _model
from tessera.papers.many_shot.settings import BUDGETS, STRATEGIES

SMOKE = BUDGETS["smoke"]


@pytest.mark.parametrize("name", ["mosaic_v2", "llama"])
def test_a_shared_context_is_read_once_without_a_difference(name):
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_layers": 2, "num_heads": 2, "max_positions": 64}
    model = build_small_model(name, **sizes).eval().double()  # in float32 the two ways round differently
    ids = torch.randint(1, 50, (60,), generator=torch.Generator().manual_seed(0)).tolist()
    prompts = [ids[:40] + ids[start : start + count] for start, count in ((41, 1), (45, 5), (50, 9))]
    with torch.no_grad():
        alone = torch.stack([model(torch.tensor([prompt])).logits[0, -1] for prompt in prompts])
        assert torch.allclose(next_logits(model, prompts), alone)
        assert torch.allclose(next_logits(model, [ids[:9], ids[9:14]])[0], model(torch.tensor([ids[:9]])).logits[0, -1])


def test_every_number_of_shots_and_strategy_is_tested():
    scores = evaluate(_model(SMOKE).eval(), SMOKE, type("Context", (), {"report": staticmethod(lambda *_: None)}))
    assert list(scores) == ["1", "2"]
    for by_strategy in scores.values():
        assert tuple(by_strategy) == STRATEGIES
        for one in by_strategy.values():
            assert one["exact_match"][2] == SMOKE.contexts
            assert 0 <= one["exact_match"][0] <= one["likeliest_label"][0] <= 1


def test_tests_are_of_other_classes_than_training():
    trained = SMOKE.trained_tasks()[0].held_apart(SMOKE.trained_tasks()[0].sample(50, 0))
    tested = SMOKE.tested_task(2, "space, fixed").held_apart(SMOKE.tested_task(2, "space, fixed").sample(50, 0, "test"))
    assert not trained & tested
    assert [task.delimiter for task in SMOKE.trained_tasks()] == ["newline", "space"]


def record(model, seed, best, shots=(1, 2), strategy=1, **more):
    """Scores of 0.1, but `best` at the last number of shots with one strategy."""
    settings = replace(BUDGETS["cpu"], model=model, seed=seed)
    scores: dict = {}
    for count in shots:
        for place, name in enumerate(STRATEGIES):
            mean = best if (place, count) == (strategy, shots[-1]) else 0.1
            cell = {score: [mean, 0.01, 16] for score in ("exact_match", "likeliest_label")}
            scores.setdefault(str(count), {})[name] = cell
    return Record(settings, {"parameters": 7, "scores": scores, "training": {"loss": 1.25}} | more, {})


def test_the_best_strategy_is_that_of_the_mean_over_seeds():
    records = {"a": record("mosaic_v2", 0, 0.9), "b": record("mosaic_v2", 1, 0.6, strategy=2)}
    best = next(curve for curve in curves(records) if curve.strategy is None and curve.score == "exact_match")
    assert best.seeds == 2
    assert best.points[2].mean == pytest.approx(0.5)  # 0.9 and 0.1 with one strategy, 0.1 and 0.6 with another
    assert best.points[2].standard_error == pytest.approx(0.4)


def test_tables():
    without = record("mosaic_v2", 0, 0.3).outcome["scores"]
    records = {
        "a": record("llama", 0, 0.25),
        "b": record("mosaic_v2", 0, 0.75, without_long_term_memory=without),
    }
    parts = tables(records)
    lines = parts["Accuracy, exact match"].splitlines()[2:]
    assert lines == [
        "| Memory Mosaic v2 | 1 | 10.0 ± 1.0 | 75.0 ± 1.0 |",
        "| Llama twin | 1 | 10.0 ± 1.0 | 25.0 ± 1.0 |",
        "| Memory Mosaic v2, long-term memories off | 1 | 10.0 ± 1.0 | 30.0 ± 1.0 |",
    ]
    assert "| Llama twin | +0.0 | +50.0 |" in parts["Lead of v2"]
    assert "| Llama twin | newline, shuffled | 10.0 ± 1.0 | 25.0 ± 1.0 |" in parts["Every prompt strategy"]
    assert parts["Every seed"].splitlines()[2:] == [
        "| Memory Mosaic v2 | 0 | 1.25 | 10.0 | 75.0 |",
        "| Llama twin | 0 | 1.25 | 10.0 | 25.0 |",
    ]
    assert "Lead of v2" not in tables({"a": records["a"]})


def test_models_of_a_budget_have_one_size():
    counts = []
    for run in EXPERIMENT.runs(RunSelection("cpu", seeds=1)):
        counts.append(sum(parameter.numel() for parameter in _model(run.configuration).parameters()))
    assert max(counts) / min(counts) < 1.02
    assert max(counts) < 2_000_000
