"""The published setting, the evaluation, and the numbers of the table."""

import math

import pytest
import torch

from tessera.models.memory_mosaic import MemoryMosaicConfig, MemoryMosaicForCausalLM
from tessera.papers.experiment import RunSelection
from tessera.papers.length_generalization.report import EXPERIMENT, FACTORS, SETTINGS, evaluate, half, sharper
from tests.tasks.cases import case_of


def settings_of(budget, task):
    return next(settings for settings in SETTINGS[budget] if settings.key == task)


class Knowing(torch.nn.Module):
    """The oracle as a model; below `longest` tokens it knows, beyond it guesses."""

    def __init__(self, task, longest):
        super().__init__()
        self.case, self.longest, self.rows, self.seen = case_of(task), longest, [], []

    def forward(self, input_ids, use_cache):
        from types import SimpleNamespace

        from tessera.tasks.task import TokenExamples

        self.rows.append(len(input_ids))
        self.seen += input_ids.tolist()
        examples = TokenExamples(input_ids, input_ids)
        knows = input_ids.shape[1] < self.longest
        return SimpleNamespace(logits=self.case.oracle(examples) if knows else self.case.guess(examples, 0))


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
        slopes = [memory.bandwidth(memory.kernel)[0] for memory in (layer.contextual, layer.persistent)]
        assert torch.allclose(slopes[0], torch.tensor(2 * math.e**2))
        assert torch.allclose(slopes[1], torch.tensor(math.e**2))
    scores["2"]["token_accuracy"][0] = 0.4
    assert set(sharper(model, setting, scores, "cpu")["sharper"]) == {"1"}
    assert sharper(torch.nn.Linear(1, 1), setting, scores, "cpu") == {}


def test_where_a_curve_falls_below_one_half():
    assert half({1: 1.0, 2: 0.75, 4: 0.25}) == "2.83x"
    assert half({2: 0.9, 1: 1.0}) == "> 2x"
    assert half({1: 0.2, 2: 0.9}) == "< 1x"


def test_kernels_alone_leave_the_transformer_out():
    keys = {run.key for run in EXPERIMENT.runs(RunSelection("cpu", kernels=("biweight",)))}
    assert keys == {f"{task}/biweight/seed 0" for task in (*FACTORS, "sort_long")}
    keys = {run.key for run in EXPERIMENT.runs(RunSelection("cpu", models=("transformer",)))}
    assert keys == {f"{task}/transformer/seed 0" for task in (*FACTORS, "sort_long")}
