"""The published setting, the evaluation, and the numbers of the table."""

import math
from dataclasses import replace

import pytest
import torch

from tessera.models.memory_mosaic import MemoryMosaicConfig, MemoryMosaicForCausalLM
from tessera.papers.experiment import Record, RunSelection
from tessera.papers.length_generalization import published
from tessera.papers.length_generalization.report import curves, half, tables
from tessera.papers.length_generalization.run import EXPERIMENT, build, evaluate, sharper
from tessera.papers.length_generalization.settings import KERNELS, SETTINGS


def settings_of(budget, task):
    return next(settings for settings in SETTINGS[budget] if settings.key == task)


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


def test_a_run_has_the_dropout_and_initialization_of_its_settings():
    settings = replace(SETTINGS["smoke"][0], dropout=0.1, contextual_dropout=False, initialization="fan_in")
    config = build(settings).config
    assert (config.weight_dropout, config.contextual_weight_dropout, config.initialization) == (0.1, 0.0, "fan_in")


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
    setting = settings_of("smoke", task)
    model = Knowing(setting.trained_task, longest=setting.task_at(2).sample(1, 0).tokens.shape[1])
    short, long = (evaluate(model, setting, factor, "cpu") for factor in (1, 2))
    assert short["exact_match"] == [1.0, 0.0, 20]
    assert long["token_accuracy"][0] < 0.8
    assert 4 <= long["exact_match"][2] <= 20


def test_rows_of_one_batch_hold_no_more_than_16384_tokens():
    setting = settings_of("cpu", "mqmtar")
    model = Knowing(setting.trained_task, longest=10**6)
    tested = evaluate(model, setting, 16, "cpu")["exact_match"][2]
    assert sum(model.rows) == tested == 60_000 // 1045
    assert max(model.rows) == 16_384 // 1045
    assert len({tuple(row) for row in model.seen}) == tested


def test_sharper_memories_at_the_longest_length_that_still_works():
    setting = settings_of("smoke", "reverse")
    config = MemoryMosaicConfig(vocab_size=12, hidden_size=16, num_layers=2, num_heads=2, num_persistent_slots=4)
    model = MemoryMosaicForCausalLM(config).eval()
    scores = {"1": {"token_accuracy": [0.9, 0.0, 20]}, "2": {"token_accuracy": [0.6, 0.0, 20]}}
    before = evaluate(model, setting, 2, "cpu")
    sharp = sharper(model, setting, scores, "cpu")["sharper"]
    assert set(sharp) == {"2"}
    assert sharp["2"].keys() == before.keys()
    for layer in model.model.layers:
        assert torch.allclose(layer.contextual.bandwidth.log_inverse_bandwidth.exp(), torch.tensor(2 * math.e**2))
        assert torch.allclose(layer.persistent.bandwidth.log_inverse_bandwidth.exp(), torch.tensor(math.e**2))
    scores["2"]["token_accuracy"][0] = 0.4
    assert set(sharper(model, setting, scores, "cpu")["sharper"]) == {"1"}
    assert sharper(torch.nn.Linear(1, 1), setting, scores, "cpu") == {}


def record(task, name, seed, exact):
    run = next(run for run in EXPERIMENT.runs(RunSelection("cpu", seeds=2)) if run.key == f"{task}/{name}/seed {seed}")
    scores = {f"{factor:g}": {"exact_match": [value, 0.01, 100]} for factor, value in exact.items()}
    return Record(run.configuration, {"scores": scores}, {})


def test_table_and_curves_over_seeds():
    records = {
        "a": record("sort", "gaussian", 0, {1: 1.0, 2: 0.5}),
        "b": record("sort", "gaussian", 1, {1: 0.8, 2: 0.1}),
        "c": record("mqmtar", "transformer", 0, {1: 0.25}),
        "d": record("sort_long", "triweight", 0, {1: 1.0, 2: 0.5}),
    }
    points = curves(records)
    assert list(points) == ["mqmtar", "sort", "sort_long"]
    pooled, alone = points["sort"]["gaussian"][2.0], points["mqmtar"]["transformer"][1.0]
    assert (*pooled.estimate, pooled.best) == pytest.approx((0.3, 0.2, 2, 0.5))
    assert (*alone.estimate, alone.best) == pytest.approx((0.25, 0.01, 1, 0.25))
    parts = tables(records)
    cells = "0.90 ± 0.10 (1.00) *1.00 (1.00)* | 0.30 ± 0.20 (0.50) *0.06 (0.17)* | 1.59x *1.45x*"
    assert f"| Gaussian | 2 | {cells} |" in parts["Sort"]
    assert "| Transformer (rotary) | 1 | 0.25 ± 0.01 | < 1x |" in parts["MQMTAR"]
    row = "| Triweight | 1 | 1.00 ± 0.01 *1.00 (1.00)* | 0.50 ± 0.01 *0.98 (0.99)* |"
    assert row in parts["Sort, four times as long"]
    assert "| Sort | here | 2 | 64 | 4 | 0 | 2,000 | 32 | 0.003 | 8 to 16 | 8 | - | 16 |" in parts["Settings"]
    assert "|  | paper | 2 | 512 | 8 | 2688 | 156,250 | 256 | 0.001 | 32 to 64 | 32 | - | 64 |" in parts["Settings"]


def test_what_sharper_memories_change_is_shown_where_there_is_something_to_see():
    records = {"a": record("sort", "gaussian", 0, {1: 1.0, 2: 0.5}), "b": record("sort", "biweight", 0, {1: 0.0})}
    records["a"].outcome["scores"]["2"]["token_accuracy"] = [0.75, 0.01, 100]
    records["a"].outcome["sharper"] = {"2": {"exact_match": [0.625, 0.01, 100], "token_accuracy": [0.875, 0.01, 100]}}
    records["b"].outcome["sharper"] = {"1": {"exact_match": [0.0, 0.01, 100]}}
    text = tables(records)["Inverse bandwidth doubled"]
    assert text.splitlines()[2:] == ["| Sort | Gaussian | 2x | 0.50 -> 0.62 | 0.75 -> 0.88 |  |  |"]


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
    for run in EXPERIMENT.runs(RunSelection(budget)):
        name, settings = run.key.split("/")[0], run.configuration
        assert settings.key == name
        assert type(settings.trained_task).__name__ == {"mqmtar": "MultiQueryRecall"}.get(
            settings.task, settings.task.capitalize()
        )
