"""What is shown of document questions, and that the stages are trained and tested as they say."""

from dataclasses import replace
from itertools import combinations

import torch

from tessera.models.small_models import build_small_model
from tessera.papers.document_qa.report import tables
from tessera.papers.document_qa.run import EXPERIMENT
from tessera.papers.document_qa.settings import BUDGETS
from tessera.papers.experiment import Record, RunContext

SMOKE = BUDGETS["smoke"]


def record(model, seed=0, without=None):
    settings = replace(BUDGETS["cpu"], model=model, seed=seed, early_stages=())
    outcome: dict = {"parameters": 7}
    for stage, lengths in (("training", settings.test_lengths), ("tuning", settings.tuned_test_lengths)):
        outcome[stage] = {"loss": 0.25, "scores": {str(length): [100 / length, 0.01, 16] for length in lengths}}
        if without is not None:
            outcome[stage]["without_long_term_memory"] = {str(length): [without, 0.01, 16] for length in lengths}
    return Record(settings, outcome, {})


def test_tables_have_our_rows_and_the_papers():
    records = {"a": record("llama"), "b": record("mosaic_v2", without=0.2), "c": record("llama", seed=1)}
    parts = tables(records)
    assert parts["After training"].splitlines()[2:] == [
        "| Memory Mosaic v2 | 1 | 78.1 ± 1.0 | 39.1 ± 1.0 | 19.5 ± 1.0 | 9.8 ± 1.0 |",
        "| Memory Mosaic v2, long-term memories off | 1 | 20.0 ± 1.0 | 20.0 ± 1.0 | 20.0 ± 1.0 | 20.0 ± 1.0 |",
        "| Llama twin (RoPE) | 2 | 78.1 ± 0.0 | 39.1 ± 0.0 | 19.5 ± 0.0 | 9.8 ± 0.0 |",
    ]
    assert parts["Every training"].splitlines()[3] == "| Llama twin (RoPE) | 0 | 0.25 | 78.1 | 39.1 | 19.5 | 9.8 |"
    assert "| Transformer small | 39.4 | fails | fails | fails |" in parts["After training, paper"]
    assert "| Memory Mosaic v2 large | 58.9 | 55.5 | 54.9 | 53.4 | 46.4 |" in parts["After tuning, paper"]
    assert "long-term memories off (large) | 38.5 | 22.2 | 20.0 | 20.2 | - |" in parts["After tuning, paper"]


def test_early_steps_are_counted_as_they_were_done():
    records = {"a": record("llama"), "b": record("lstm"), "c": record("mosaic_v2", without=0.2)}
    assert "early steps" not in tables(records)["Settings"]
    stages = BUDGETS["cpu"].early_stages
    for number, (name, steps) in enumerate((("a", 100), ("b", 250))):
        configuration = replace(records[name].configuration, early_stages=stages)
        outcome = {**records[name].outcome, "stage-1": {"steps": steps}, "stage-2": {"steps": number}}
        records[name] = Record(configuration, outcome, {})
    assert "| early steps of the twin | 100 to 251 | - |" in tables(records)["Settings"]


def test_tuning_goes_on_from_training_and_long_term_memories_are_on_again(tmp_path):
    run = SMOKE.run("mosaic_v2", 0)
    outcome = EXPERIMENT.execute(run, RunContext(tmp_path))
    assert (outcome["training"]["steps"], outcome["tuning"]["steps"]) == (2, 2)
    assert list(outcome["training"]["scores"]) == ["64", "128"]
    assert outcome["training"].keys() == outcome["tuning"].keys()
    again = EXPERIMENT.execute(run, RunContext(tmp_path))  # both trainings are found finished
    assert again["tuning"]["scores"] == outcome["tuning"]["scores"]
    assert again["tuning"]["without_long_term_memory"] == outcome["tuning"]["without_long_term_memory"]


def test_the_short_term_memory_spans_what_the_settings_say():
    model_settings = SMOKE.run("mosaic_v2", 0).configuration
    model = build_small_model("mosaic_v2", vocab_size=60, hidden_size=16, num_heads=2, max_positions=16 * SMOKE.span)
    assert model.config.short_term_span == model_settings.span
    assert model.config.long_term_delay == model_settings.span // 4
    assert tuple(model.config.training_long_term_delay) == (model_settings.span // 4, model_settings.span)
    assert torch.isfinite(model(torch.zeros(1, 8, dtype=torch.long)).logits).all()


def test_easier_forms_come_before_the_training_of_the_twin():
    for model, count in (("mosaic_v2", 0), ("llama", 6), ("lstm", 0)):
        stages = BUDGETS["cpu"].run(model, 0).configuration.stages()
        assert [stage.name for stage in stages] == [*(f"stage-{n}" for n in range(count)), "training", "tuning"]
        drawn_from = [(stage.first_seed, {repr(task) for task in stage.tasks}) for stage in stages]
        apart = [one[0] != other[0] or not one[1] & other[1] for one, other in combinations(drawn_from, 2)]
        assert all(apart), "two stages would see the same samples"
    stages = BUDGETS["cpu"].run("llama", 0).configuration.stages()
    documents = [[task.num_documents for task in stage.tasks] for stage in stages[:6]]
    assert documents == [[1], [1] * 5, [1] * 5, [1, 1, 1, 1, 1, 2], [1, 2, 3], [1, 2, 3]]
    assert all(task.length == task.length_of(task.num_documents) for stage in stages[:6] for task in stage.tasks)
    assert len({stage.tasks[0].vocab_size for stage in stages}) == 1
