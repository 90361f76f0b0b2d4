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
from tessera.tools.plan import H100_FLOPS, _mesh, plan, step_memory
from tessera.training.distributed import shard
from tessera.training.run import train

SMALL = ("model.num_layers=2", "model.hidden_size=64", "data.context=64", "training.micro_batch_size=2")


def small(*overrides):
    return read_recipe("mosaic-v2-10m", [*SMALL, *overrides])


@pytest.fixture
def remembered(monkeypatch):
    """`step_memory` as plans call it too, but the step of equal recipes is counted once: each takes a second."""
    known = {}

    def count(*arguments):
        return known.get(repr(arguments)) or known.setdefault(repr(arguments), step_memory(*arguments))

    monkeypatch.setattr("tessera.tools.plan.step_memory", count)
    return count


@pytest.fixture
def without_memory(monkeypatch):
    """Plans count everything but memory."""
    monkeypatch.setattr("tessera.tools.plan.step_memory", lambda *arguments: {"peak": 1})


def test_exact_parts():
    """Weights, gradients and Adam's two moments of float32; a step count of 4 bytes for each parameter."""
    recipe = small()
    memory = step_memory(recipe, 1, "fp32")
    model = meta_model(untrained_config(recipe))
    size = 4 * count_parameters(model.config)
    assert memory["weights"] == memory["gradients"] == size
    assert memory["optimizer"] == 2 * size + 4 * len(list(model.parameters()))
    assert memory["buffers"] == 0
    # all gradients at once, and the square roots of the second moments of the largest group
    matrices = 4 * sum(parameter.numel() for parameter in model.parameters() if parameter.dim() >= 2)
    assert memory["optimizer_step"] == pytest.approx(2 * size + memory["optimizer"] + matrices, rel=0.01)
    parts = memory["weights"] + memory["optimizer"] + memory["gradients_at_peak"] + memory["activations"]
    assert memory["forward_and_backward"] == memory["peak"] == parts


def test_shards():
    """Of each parameter a device has a share of the rows, rounded up; the gradients of others are not kept."""
    recipe, devices = small("training.shard=true", "training.micro_batch_size=1"), 8
    memory = step_memory(recipe, devices, "bf16")
    parameters = list(meta_model(untrained_config(recipe)).parameters())
    shares = sum(math.ceil(one.shape[0] / devices) * one[0].numel() for one in parameters)
    assert memory["weights"] == memory["gradients"] == 4 * shares
    assert memory["optimizer"] == 8 * shares + 4 * len(parameters)
    assert memory["optimizer_step"] < 1.5 * (memory["weights"] + memory["gradients"] + memory["optimizer"])
    alone = step_memory(replace(recipe, training=replace(recipe.training, shard=False)), devices, "bf16")
    assert alone["buffers"] == alone["gradients"]  # what DDP sends gradients in
    assert memory["peak"] < alone["peak"]


@pytest.mark.slow  # what a plan changes, test_what_does_not_fit counts too
def test_what_costs_more_and_less():
    peaks = {
        name: step_memory(small(*overrides), 1, "bf16")["activations"]
        for name, overrides in {
            "usual": (),
            "checkpointing": ("training.gradient_checkpointing=true",),
            "one sequence": ("training.micro_batch_size=1",),
            "twice as long": ("data.context=128",),
            "3 layers": ("model.num_layers=3",),
            "4 layers": ("model.num_layers=4",),
        }.items()
    }
    assert peaks["checkpointing"] < peaks["usual"]
    assert peaks["one sequence"] < 0.7 * peaks["usual"]
    assert peaks["usual"] < peaks["twice as long"] < 2 * peaks["usual"]
    one_more = peaks["3 layers"] - peaks["usual"]  # layers are equal, and so is what each keeps
    assert one_more > 0
    assert peaks["4 layers"] - peaks["3 layers"] == pytest.approx(one_more, rel=0.01)


@pytest.mark.parametrize(
    "name",
    [
        "babistories-kernels-1",
        "babistories-transformer-alibi-1",
        pytest.param("babistories-transformer-rope-1", marks=pytest.mark.slow),
        pytest.param("armt-wikitext-103", marks=pytest.mark.slow),
        pytest.param("rmt-wikitext-103", marks=pytest.mark.slow),
        pytest.param("gpt2-wikitext-103", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("device_type", ["cuda", "cpu"])
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
    assert plan(recipe)["peak_flops"] == H100_FLOPS["bf16"]
    assert (planned["micro_batch"], planned["accumulation"]) == (2, 4)


def test_what_does_not_fit(remembered):
    one_layer = ("training.batch_size=8", "data.context=128", "model.num_layers=1")
    recipe = small(*one_layer, "training.micro_batch_size=4")
    needed = remembered(recipe, 2, "bf16", "cuda")["peak"]
    enough = plan(recipe, 2, needed)
    assert (enough["fits"], enough["changes"], enough["memory"]["peak"]) == (True, [], needed)
    less = plan(recipe, 2, needed - 1)
    assert less["fits"] is False
    assert less["changes"][0]["overrides"] == ["training.shard=true"]
    nothing = plan(recipe, 2, 1000)
    assert nothing["changes"][-1]["overrides"] == [
        "training.shard=true",
        "training.micro_batch_size=1",
        "training.gradient_checkpointing=true",
    ]
    assert not any(change["fits"] for change in nothing["changes"])
    peaks = [needed, *(change["peak"] for change in nothing["changes"])]
    assert peaks[2] < peaks[1] < peaks[0]
    # what it says of a change is what a plan of the changed recipe says
    changed = small(*one_layer, "training.shard=true", "training.micro_batch_size=1")
    assert remembered(changed, 2, "bf16", "cuda")["peak"] == nothing["changes"][1]["peak"]


def test_refusals():
    with pytest.raises(TesseraError, match="must be a multiple of the 3 processes"):
        plan(small(), 3)
    with pytest.raises(TesseraError, match=r"training\.curriculum must be empty; got \d+ stages") as refused:
        plan(read_recipe("own-questions"))
    longest_stage = read_recipe("own-questions", str(refused.value).split("as a text: ")[1].split())
    assert longest_stage.data.context == 4 * longest_stage.model["segment_size"]
    assert plan(longest_stage, 1)["memory"]["peak"] > 0
    with pytest.raises(TesseraError, match=r"data\.document_ids must be false for model type llama"):
        plan(read_recipe("llama-small-4k", ["data.document_ids=true", "model.num_hidden_layers=1"]))


def test_sharding_is_that_of_training():
    """The processes that are made up spread a model as real ones do."""
    with torch.device("meta"):
        model = torch.nn.Linear(4, 6)
    model._no_split_modules = ()
    with _mesh(4) as mesh:
        shard(model, mesh)
        assert model.weight.to_local().shape == (2, 4)
    assert not torch.distributed.is_initialized()


def test_checkpoint(tmp_path, without_memory):
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time there was a memory. " * 400)
    overrides = ["tokenizer={type: byte}", f"data.source={text}", "training.steps=2", "training.batch_size=4"]
    recipe = read_recipe("mosaic-v2-10m", [*SMALL, *overrides, "model.hidden_size=256", "training.precision=fp32"])
    train(recipe, tmp_path / "run", progress=False)
    folder = tmp_path / "run" / "checkpoints" / "checkpoint-2"
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    planned = plan(recipe)
    assert planned["checkpoint_bytes"] == pytest.approx(sum(sizes.values()), rel=0.02)
    assert planned["model_bytes"] == pytest.approx((tmp_path / "run" / "model.safetensors").stat().st_size, rel=0.02)


MEASURED = {
    "v2": "model: {type: memory_mosaic_v2, hidden_size: 256, num_layers: 6, num_heads: 4, intermediate_size: 704}",
    "v1": "model: {type: memory_mosaic, hidden_size: 256, num_layers: 6, num_heads: 4}",
    "llama": "model: {type: transformer, positions: rope, hidden_size: 256, num_layers: 6, num_heads: 4}",
}
SETTINGS = {
    "plain": "micro_batch_size: 8",
    "accumulated": "micro_batch_size: 4",
    "checkpointed": "micro_batch_size: 8, gradient_checkpointing: true",
}
# The most memory that the process ever had, read by the system. Freed memory goes back to it at once.
CHILD = """
import resource, sys
from tessera.cli.main import main
assert main(["train", *sys.argv[1:]]) == 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "OMP_NUM_THREADS": "1"}


def resident(recipe, run):
    environment = {**os.environ, **MALLOC}
    command = [sys.executable, "-c", CHILD, str(recipe), "--output", str(run)]
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
    recipes, resident_bytes, planned = {}, {}, {}
    for size, batch in (("large", 8), ("small", 1)):
        recipes[size] = tmp_path / f"{size}.yaml"
        layers = MEASURED[model] if size == "large" else MEASURED[model].replace("num_layers: 6", "num_layers: 1")
        layers = layers if size == "large" else layers.replace("256", "32").replace("704", "32")
        training = SETTINGS[settings].replace("micro_batch_size: ", f"batch_size: {batch}, micro_batch_size: ")
        if size == "small":
            training = training.replace("micro_batch_size: 8", "micro_batch_size: 1")
            training = training.replace("micro_batch_size: 4", "micro_batch_size: 1")
        recipes[size].write_text(
            f"{layers}\ntokenizer: {{type: byte}}\ndata: {{source: {json.dumps(str(text))}, context: 256}}\n"
            f"training: {{steps: 2, {training}, precision: fp32, evaluate_sequences: 1, warmup_steps: 1}}\n"
        )
        planned[size] = plan(read_recipe(recipes[size]), device_type="cpu")["memory"]["peak"]
        resident_bytes[size] = resident(recipes[size], tmp_path / size)
    measured = resident_bytes["large"] - resident_bytes["small"]
    assert measured > 100e6
    assert planned["large"] - planned["small"] == pytest.approx(measured, rel=0.1)
