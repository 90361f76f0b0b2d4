"""What is shown of document questions, and that the stages are trained and tested as they say."""

from itertools import combinations

import torch

from tessera.kernels import kernel_from_config
from tessera.papers.document_qa.report import BUDGETS, EXPERIMENT, build
from tessera.papers.experiment import RunContext

SMOKE = BUDGETS["smoke"]


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
    model = build(model_settings)
    assert model.config.short_term_span == model_settings.span
    assert model.config.long_term_delay == model_settings.span // 4
    assert tuple(model.config.training_long_term_delay) == (model_settings.span // 4, model_settings.span)
    assert torch.isfinite(model(torch.zeros(1, 8, dtype=torch.long)).logits).all()


def test_each_row_of_v2_has_its_kernel():
    names = ("mosaic_v2", "mosaic_v2_biweight", "mosaic_v2_triweight")
    kernels = [build(SMOKE.run(name, 0).configuration).config.kernel for name in names]
    assert [kernel_from_config(kernel).name for kernel in kernels] == ["gaussian", "biweight", "triweight"]
    assert build(SMOKE.run("llama", 0).configuration).config.model_type == "llama"


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
