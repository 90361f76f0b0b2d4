"""What `plan` says against what runs really take, and against the v2 paper's counts."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from tessera.base.errors import TesseraError
from tessera.evaluation.accounting import training_flops_per_sequence
from tessera.models.sizes import count_parameters, flops_per_sequence, flops_per_token, meta_model
from tessera.recipes.model_section import untrained_config
from tessera.recipes.recipe import read_recipe
from tessera.tools.plan import _mesh, plan, step_memory
from tessera.training.distributed import shard
from tests.refusals import refused

SMALL = ("model.num_layers=2", "model.hidden_size=64", "data.context=64", "training.micro_batch_size=2")


def small(*overrides):
    return read_recipe("mosaic-v2-10m", [*SMALL, *overrides])


@pytest.fixture
def without_memory(monkeypatch):
    """Plans count everything but memory."""
    monkeypatch.setattr("tessera.tools.plan.step_memory", lambda *arguments: {"peak": 1})


def test_exact_parts():
    """Weights, gradients and Adam's two moments of float32; a step count of 4 bytes for each parameter."""
    recipe = small("tokenizer={type: byte}", "data.context=4")  # so little that most is alive in the optimizer's step
    memory = step_memory(recipe, 1, "fp32")
    model = meta_model(untrained_config(recipe))
    size = 4 * count_parameters(model.config)
    assert memory["weights"] == memory["gradients"] == size
    assert memory["optimizer"] == 2 * size + 4 * len(list(model.parameters()))
    assert memory["buffers"] == 0
    # the square roots of the second moments of the largest group
    matrices = 4 * sum(parameter.numel() for parameter in model.parameters() if parameter.dim() >= 2)
    assert memory["activations"] == pytest.approx(matrices, rel=0.05)
    assert memory["peak"] == sum(size for name, size in memory.items() if name != "peak")


@pytest.mark.grid
def test_a_step_of_one_pass_starts_without_gradients():
    """So most is alive at the end of the backward pass, when fewer activations are left, or in between."""
    passes, whole = small("training.batch_size=4"), small("training.batch_size=2")
    size = 4 * count_parameters(untrained_config(whole))
    assert step_memory(passes, 1, "fp32")["gradients"] == size
    assert step_memory(whole, 1, "fp32")["gradients"] < size


@pytest.mark.grid
def test_shards():
    """Of each parameter a device has a share of the rows, rounded up; the gradients of others are not kept."""
    recipe, devices = small("training.shard=true", "training.micro_batch_size=1"), 8
    memory = step_memory(recipe, devices, "bf16")
    parameters = list(meta_model(untrained_config(recipe)).parameters())
    shares = sum(math.ceil(one.shape[0] / devices) * one[0].numel() for one in parameters)
    assert memory["weights"] == memory["gradients"] == 4 * shares
    assert memory["optimizer"] == 8 * shares + 4 * len(parameters)
    alone = step_memory(replace(recipe, training=replace(recipe.training, shard=False)), devices, "bf16")
    assert alone["buffers"] == alone["weights"]  # what DDP sends gradients in
    assert memory["peak"] < alone["peak"]


def activations(*overrides):
    return step_memory(small(*overrides), 1, "bf16")["activations"]


@pytest.mark.grid
def test_what_costs_less():
    usual = activations()
    assert activations("training.gradient_checkpointing=true") < usual
    assert activations("training.micro_batch_size=1") < 0.7 * usual


@pytest.mark.grid
def test_what_costs_more():
    usual, three_layers = activations(), activations("model.num_layers=3")
    assert usual < activations("data.context=128") < 2 * usual
    one_more = three_layers - usual  # layers are equal, and so is what each keeps
    assert one_more > 0
    assert activations("model.num_layers=4") - three_layers == pytest.approx(one_more, rel=0.01)


@pytest.mark.parametrize(
    "name",
    [
        "babistories-kernels-1",
        pytest.param("babistories-transformer-alibi-1", marks=pytest.mark.grid),
        pytest.param("babistories-transformer-rope-1", marks=pytest.mark.slow),
        pytest.param("armt-wikitext-103", marks=pytest.mark.slow),
        pytest.param("rmt-wikitext-103", marks=pytest.mark.slow),
        pytest.param("gpt2-wikitext-103", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("device_type", ["cuda", pytest.param("cpu", marks=pytest.mark.grid)])
def test_other_models(name, device_type):
    overrides = ["training.batch_size=2", "training.micro_batch_size=1", "data.context=128"]
    memory = step_memory(read_recipe(name, overrides), 1, "fp32", device_type)
    assert memory["activations"] > 0


def test_flops_of_a_sequence_are_those_of_its_tokens():
    config = untrained_config(small("model.short_term_span=8"))
    expected = sum(flops_per_token(config, context) for context in range(24))
    assert flops_per_sequence(config, 24) == expected
    assert training_flops_per_sequence(config, 24) == 3 * expected


def test_speed_and_time(without_memory):
    recipe = small("training.evaluate_every=500", "training.evaluate_sequences=96", "training.batch_size=32")
    planned = plan(recipe, 4, utilization=0.25, peak_flops=2e12)
    assert planned["flops_per_step"] == 32 * training_flops_per_sequence(untrained_config(recipe), 64)
    assert planned["tokens_per_second"] == pytest.approx(0.25 * 4 * 2e12 * 32 * 64 / planned["flops_per_step"])
    # four validations, each as long as a training step on a third as many sequences
    steps = 2000 + 4 * 96 / 32 / 3
    assert planned["days"] == pytest.approx(steps * 32 * 64 / planned["tokens_per_second"] / 86400)
    on_h100 = plan(recipe)
    assert on_h100["tokens_per_second"] * on_h100["flops_per_step"] == pytest.approx(0.4 * 989e12 * 32 * 64)
    assert planned["at_once"] == "2 x 64 tokens, 4 passes per step"


def test_what_does_not_fit(without_memory):
    recipe = small()
    assert plan(recipe)["missing_memory"] is None
    assert plan(recipe, 1, 1)["missing_memory"] == 0
    assert plan(recipe, 1, 2)["missing_memory"] == 0
    assert plan(recipe, 2, 0)["missing_memory"] == 1


def test_refusals():
    refused("must be a multiple of the 3 processes", plan, small(), 3)
    needed = r"data\.document_ids must be false for model type llama"
    refused(needed, plan, read_recipe("llama-small-4k", ["data.document_ids=true", "model.num_hidden_layers=1"]))


def test_the_longest_stage_of_a_curriculum_is_planned_as_the_refusal_says(without_memory):
    with pytest.raises(TesseraError, match=r"training\.curriculum must be empty; got \d+ stages") as caught:
        plan(read_recipe("armt-babilong-qa1"))
    longest_stage = read_recipe("armt-babilong-qa1", str(caught.value).split("as a text: ")[1].split())
    assert longest_stage.data.context == 16 * longest_stage.model["segment_size"]
    assert untrained_config(longest_stage).vocab_size == 1510, "the words of the task"
    assert plan(longest_stage, 1)["memory"]["peak"] > 0


def test_sharding_is_that_of_training():
    """The processes that are made up spread a model as real ones do."""
    with torch.device("meta"):
        model = torch.nn.Linear(4, 6)
    model._no_split_modules = ()
    with _mesh(4) as mesh:
        shard(model, mesh)
        assert model.weight.to_local().shape == (2, 4)
    assert not torch.distributed.is_initialized()


MEASURED = {
    "v2": "model: {type: memory_mosaic_v2, hidden_size: 256, num_layers: 6, num_heads: 4, intermediate_size: 704}",
    "v1": "model: {type: memory_mosaic, hidden_size: 256, num_layers: 6, num_heads: 4}",
    "llama": "model: {type: transformer, positions: rope, hidden_size: 256, num_layers: 6, num_heads: 4}",
}
TRAINING = "batch_size: 8, steps: 2, warmup_steps: 1, evaluate_sequences: 1, precision: fp32"
SETTINGS = {
    "plain": "micro_batch_size: 8",
    "accumulated": "micro_batch_size: 4",
    "checkpointed": "micro_batch_size: 8, gradient_checkpointing: true",
}
SMALL_RUN = ("training.batch_size=1", "training.micro_batch_size=1", "model.num_layers=1", "model.hidden_size=32")
# The most memory that the process ever had, read by the system. Freed memory goes back to it at once.
CHILD = """
import resource, sys
from tessera.cli.main import main
assert main(["train", *sys.argv[1:]]) == 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "OMP_NUM_THREADS": "1"}


def resident(recipe, overrides, run):
    environment = {**os.environ, **MALLOC}
    command = [sys.executable, "-c", CHILD, str(recipe), *overrides, "--output", str(run)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout.split()[-1])


@pytest.mark.slow  # a minute each; and resident memory is smaller where the system takes back pages that lie idle
@pytest.mark.parametrize(
    ("model", "settings"), [("v2", "plain"), ("v2", "checkpointed"), ("v1", "plain"), ("llama", "accumulated")]
)
def test_memory_of_real_runs(model, settings, tmp_path):
    """The growth of a process's resident memory from a small run to a large one, within a tenth."""
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a memory. " * 2000)
    recipe, resident_bytes, planned = tmp_path / "recipe.yaml", [], []
    recipe.write_text(
        f"{MEASURED[model]}\ntokenizer: {{type: byte}}\ndata: {{source: {json.dumps(str(text))}, context: 256}}\n"
        f"training: {{{TRAINING}, {SETTINGS[settings]}}}\n"
    )
    for overrides in ((), (*SMALL_RUN, *(["model.intermediate_size=32"] if model == "v2" else []))):
        planned.append(plan(read_recipe(recipe, overrides), device_type="cpu")["memory"]["peak"])
        resident_bytes.append(resident(recipe, overrides, tmp_path / str(len(planned))))
    measured = resident_bytes[0] - resident_bytes[1]
    assert measured > 100e6
    assert planned[0] - planned[1] == pytest.approx(measured, rel=0.1)
