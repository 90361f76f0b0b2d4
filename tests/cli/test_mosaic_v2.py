"""What the command line knows about Memory Mosaics v2: presets, context fine-tuning, evaluation of its memories."""

import json

import pytest

TRAINING = ("training.steps=2", "training.warmup_steps=1", "training.batch_size=2", "training.evaluate_sequences=2")


@pytest.fixture(scope="module")
def mosaic(tmp_path_factory, corpus):
    """(recipe file, folder) of a finished run at context 16."""
    folder = tmp_path_factory.mktemp("v2")
    recipe = folder / "v2.yaml"
    sizes = "hidden_size: 16, num_layers: 1, num_heads: 2, intermediate_size: 24, long_term_delay: 2"
    windows = "short_term_span: 4, training_long_term_delay: [2, 5]"
    recipe.write_text(
        f"model: {{type: memory_mosaic_v2, {sizes}, {windows}}}\n"
        f"tokenizer: {{type: byte}}\n"
        f"data: {{source: {corpus}, context: 16, validation_fraction: 0.3, begin_token: true, document_ids: true}}\n"
    )
    from tessera.cli.main import main

    assert main(["train", str(recipe), *TRAINING, "training.precision=fp32", "--output", str(folder / "run")]) == 0
    return recipe, folder / "run"


def test_info_reports_a_preset_as_published(tessera):
    status, out, _ = tessera("info", "mosaic-v2-large", "--json", "--context", "256")
    actual = json.loads(out)
    assert status == 0
    assert round(actual["parameters"] / 1e9, 1) == 9.9
    assert sum(actual["parameters_by_part"].values()) == actual["parameters"]
    published = actual["as_published"]
    flops = {name: round(published[name]["flops_per_token"] / 1e9, 1) for name in published if name != "context"}
    assert flops == {"model": 18.9, "without_long_term_memory": 15.6, "transformer": 16.7}


def test_a_preset_takes_no_overrides(refused):
    refused("'model.num_layers=2' must be left out for a preset", "info", "mosaic-v2-large", "model.num_layers=2")


def test_evaluation_without_long_term_memory(tessera, refused, mosaic, run_folder):
    _, run = mosaic
    reports = [json.loads(tessera("eval", run, "--json", *extra)[1]) for extra in ((), ("--without-long-term-memory",))]
    assert [report["long_term_memory"] for report in reports] == [True, False]
    # The first steps hold no long-term pair; later ones miss what is switched off.
    assert reports[0]["loss_by_position"][0] == reports[1]["loss_by_position"][0]
    assert reports[0]["loss"] != reports[1]["loss"]
    message = "must have long-term memories to switch off; this memory_mosaic has none"
    refused(message, "eval", run_folder, "--without-long-term-memory")


def test_context_fine_tuning_starts_from_the_shorter_run(tessera, done, mosaic, tmp_path):
    recipe, run = mosaic
    longer = ("data.context=128", f"training.initialize_from={run}", "training.learning_rate=1e-9", *TRAINING)
    done("train", recipe, *longer, "training.precision=fp32", "--output", tmp_path / "long")
    before = json.loads(tessera("eval", run, "--json", "--context", 128, "--sequences", 2)[1])
    after = json.loads(tessera("eval", tmp_path / "long", "--json", "--sequences", 2)[1])
    assert after["context"] == 128
    # At this learning rate nothing is learned: the weights are those of the shorter run.
    assert after["loss"] == pytest.approx(before["loss"], rel=1e-5)
