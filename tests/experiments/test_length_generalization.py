"""The published setting, the evaluation, and the numbers of the table."""

import json
import math

import pytest
import torch

from tessera.experiments.experiment import Record, RunSelection
from tessera.experiments.length_generalization import published
from tessera.experiments.length_generalization.evaluate import evaluate, sharper
from tessera.experiments.length_generalization.experiment import KERNELS, LengthGeneralization, _setting_of
from tessera.experiments.length_generalization.settings import SETTINGS
from tessera.experiments.length_generalization.table import Point, curves, half, table
from tessera.models.memory_mosaic import MemoryMosaicConfig, MemoryMosaicForCausalLM

EXPERIMENT = LengthGeneralization()


def test_published_numbers_have_their_places():
    for numbers in (published.MEAN, published.BEST):
        assert set(numbers) == set(KERNELS)
        for tasks in numbers.values():
            assert {task: len(row) for task, row in tasks.items()} == {t: len(f) for t, f in published.FACTORS.items()}
    for name, tasks in published.MEAN.items():
        for task, row in tasks.items():
            for mean, best in zip(row, published.BEST[name][task]):
                assert (mean is None) == (best is None)
                assert mean is None or mean <= best


def test_the_full_budget_is_table_6():
    runs = {run.key: run.configuration for run in EXPERIMENT.runs(RunSelection("full"))}
    assert len(runs) == 3 * 3 * (len(KERNELS) + 1)
    for task, steps in {"mqmtar": 195_312, "reverse": 117_187, "sort": 156_250}.items():
        setting = runs[f"{task}/biweight/seed 2"]["setting"]
        assert (setting["options"]["steps"], setting["batch_size"], setting["hidden_size"]) == (steps, 256, 512)
        assert (setting["task"]["length"], setting["task"]["spread"], setting["test_length"]) == (48, 16, 64)
    assert runs["sort/gaussian/seed 0"]["setting"]["num_layers"] == 2


class Knowing(torch.nn.Module):
    """The oracle as a model; below `longest` tokens it knows, beyond it guesses."""

    def __init__(self, task, longest):
        super().__init__()
        self.task, self.longest, self.rows, self.seen = task, longest, [], []

    def forward(self, input_ids, use_cache):
        from types import SimpleNamespace

        from tessera.tasks.task import TokenExamples

        self.rows.append(len(input_ids))
        self.seen += input_ids.tolist()
        examples = TokenExamples(input_ids, input_ids)
        knows = input_ids.shape[1] < self.longest
        return SimpleNamespace(logits=self.task.oracle(examples) if knows else self.task.guess(examples, 0))


@pytest.mark.parametrize("task", ["mqmtar", "sort", "reverse"])
def test_evaluation_is_batched_and_counts(task):
    setting = SETTINGS["smoke"][task]
    model = Knowing(setting.task, longest=setting.task_at(2).sample(1, 0).tokens.shape[1])
    short, long = (evaluate(model, setting, factor, "cpu") for factor in (1, 2))
    assert short["exact_match"] == [1.0, 0.0, 20]
    assert long["token_accuracy"][0] < 0.8
    assert 4 <= long["exact_match"][2] <= 20


def test_rows_of_one_batch_hold_no_more_than_16384_tokens():
    setting = SETTINGS["cpu"]["mqmtar"]
    model = Knowing(setting.task, longest=10**6)
    tested = evaluate(model, setting, 16, "cpu")["exact_match"][2]
    assert sum(model.rows) == tested == 60_000 // 1045
    assert max(model.rows) == 16_384 // 1045
    assert len({tuple(row) for row in model.seen}) == tested


def test_sharper_memories_at_the_longest_length_that_still_works():
    setting = SETTINGS["smoke"]["reverse"]
    config = MemoryMosaicConfig(vocab_size=12, hidden_size=16, num_layers=2, num_heads=2, num_persistent_slots=4)
    model = MemoryMosaicForCausalLM(config).eval()
    scores = {"1": {"token_accuracy": [0.9, 0.0, 20]}, "2": {"token_accuracy": [0.6, 0.0, 20]}}
    before = evaluate(model, setting, 2, "cpu")
    found = sharper(model, setting, scores, "cpu")["sharper"]
    assert set(found) == {"2"}
    assert found["2"].keys() == before.keys()
    for layer in model.model.layers:
        assert torch.allclose(layer.contextual.bandwidth.log_inverse_bandwidth.exp(), torch.tensor(2 * math.e**2))
        assert torch.allclose(layer.persistent.bandwidth.log_inverse_bandwidth.exp(), torch.tensor(math.e**2))
    scores["2"]["token_accuracy"][0] = 0.4
    assert set(sharper(model, setting, scores, "cpu")["sharper"]) == {"1"}
    assert sharper(torch.nn.Linear(1, 1), setting, scores, "cpu") == {}


def record(task, name, seed, exact):
    run = next(run for run in EXPERIMENT.runs(RunSelection("cpu", seeds=2)) if run.key == f"{task}/{name}/seed {seed}")
    scores = {f"{factor:g}": {"exact_match": [value, 0.01, 100]} for factor, value in exact.items()}
    return Record(json.loads(json.dumps(run.configuration)), {"scores": scores}, {})


def test_table_and_curves_over_seeds():
    records = {
        "a": record("sort", "gaussian", 0, {1: 1.0, 2: 0.5}),
        "b": record("sort", "gaussian", 1, {1: 0.8, 2: 0.1}),
        "c": record("mqmtar", "transformer", 0, {1: 0.25}),
        "d": record("sort_long", "triweight", 0, {1: 1.0, 2: 0.5}),
    }
    points = curves(records)
    assert list(points) == ["mqmtar", "sort", "sort_long"]
    assert points["sort"]["gaussian"][2.0] == pytest.approx(Point(0.3, 0.2, 0.5, 2))
    assert points["mqmtar"]["transformer"][1.0] == pytest.approx(Point(0.25, 0.01, 0.25, 1))
    text = table(records)
    cells = "0.90 ± 0.10 (best 1.00) *1.00 (1.00)* | 0.30 ± 0.20 (best 0.50) *0.06 (0.17)* | 1.59x *1.45x*"
    assert f"| Gaussian | 2 | {cells} |" in text
    assert "| Transformer (rotary) | 1 | 0.25 ± 0.01 | < 1x |" in text
    assert "| Triweight | 1 | 1.00 ± 0.01 *1.00 (1.00)* | 0.50 ± 0.01 *0.98 (0.99)* |" in text
    assert "64,000 examples (40,000,000) of 8 to 16 source tokens (32 to 64), 8 symbols (32)" in text


def test_where_a_curve_falls_below_one_half():
    assert half({1: 1.0, 2: 0.75, 4: 0.25}) == "2.83x"
    assert half({2: 0.9, 1: 1.0}) == "> 2x"
    assert half({1: 0.2, 2: 0.9}) == "< 1x"


def test_kernels_alone_leave_the_transformer_out():
    keys = {run.key for run in EXPERIMENT.runs(RunSelection("cpu", kernels=("biweight",)))}
    assert keys == {f"{task}/biweight/seed 0" for task in (*published.FACTORS, "sort_long")}
    keys = {run.key for run in EXPERIMENT.runs(RunSelection("cpu", models=("transformer",)))}
    assert keys == {f"{task}/transformer/seed 0" for task in (*published.FACTORS, "sort_long")}


@pytest.mark.parametrize("budget", list(SETTINGS))
def test_a_run_is_of_the_task_in_its_key(budget):
    """A configuration holds no classes, and two tasks may have the same numbers in it."""
    for run in EXPERIMENT.runs(RunSelection(budget)):
        assert _setting_of(run) is SETTINGS[budget][run.key.split("/")[0]]
