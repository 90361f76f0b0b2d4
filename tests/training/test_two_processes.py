"""Two processes that share a batch train as one process with the whole batch; slow tests start them as users do."""

import os
import shutil
import socket
import subprocess
import sys
import traceback

import pytest
import torch
from safetensors.torch import load_file

from tessera.base.checkpoints import latest_complete
from tessera.cli.main import main
from tests.short_books import beginnings  # noqa: F401 (a fixture)
from tests.training.processes import metrics

RECIPE = """
model: {type: memory_mosaic_v2, hidden_size: 32, num_layers: 2, num_heads: 2, intermediate_size: 48,
        short_term_span: 8, training_long_term_delay: [4, 4], long_term_delay: 4}
tokenizer: {type: byte}
data: {source: %s, context: 32}
training: {steps: 4, batch_size: 8, learning_rate: 1.0e-3, warmup_steps: 1, log_every: 1, evaluate_every: 2,
           evaluate_sequences: 4, checkpoint_every: 4, precision: fp32}
"""
ARMT = """
model: {type: armt, segment_size: 32, num_memory_tokens: 2, memory_dim: 4, strength_stretch: 0.1,
        base: {type: memory_mosaic, hidden_size: 16, num_layers: 1, num_heads: 2, num_persistent_slots: 8}}
data: %s
training: {batch_size: 6, evaluate_every: 2, evaluate_sequences: 7, checkpoint_every: 2, precision: fp32,
           curriculum: %s}
"""
STAGES = {
    "questions": (
        "{task: {name: babilong, kind: qa1, noise: BOOKS, vocab_size: 250, facts_share: 0.6},"
        " questions: 3, early_questions: 2}",
        "[{length: 2, min_length: 2, steps: 2},"
        " {length: 4, min_length: 3, steps: 2, model: {backprop_segments: 2, gate_penalty: 0.5}}]",
    ),
    "text": (
        "{source: novels}\ntokenizer: {type: byte}",
        "[{length: 2, steps: 2}, {length: 3, steps: 2, model: {gate_penalty: 0.5}}]",
    ),
}
LAUNCHERS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port={port}", "-m"],
    # As on a machine with two GPUs; without any, accelerate's processes talk by gloo too.
    "accelerate": [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2"]
    + ["--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no", "--main_process_port={port}", "--module"],
}


def train(recipe, run, launcher, *options):
    if launcher == "one process":
        assert main(["train", str(recipe), "--output", str(run)]) == 0
        return
    if launcher == "forks":
        by_forks(["train", str(recipe), "--output", str(run), *options])
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [part.format(port=port) for part in LAUNCHERS[launcher]]
    command += ["tessera.cli.main", "train", str(recipe), "--output", str(run), *options]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]


def by_forks(words):
    """The command in two forks of this process, which has imported what takes each new process seconds."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    children = []
    for rank in "01":
        children.append(os.fork())
        if children[-1] == 0:
            os.environ |= {**shared, "RANK": rank, "LOCAL_RANK": rank}
            status = 70
            try:
                status = main(words)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_two_processes_train_as_one_with_the_whole_batch(tmp_path, launcher):
    (tmp_path / "text.txt").write_text("Once upon a time there was a king, and the king had a daughter. " * 60)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE % (tmp_path / "text.txt"))
    one, two = tmp_path / "one", tmp_path / "two"
    train(recipe, one, "one process")
    train(recipe, two, launcher)
    for name in ("loss", "validation_loss", "gradient_norm"):
        assert metrics(two, name) == pytest.approx(metrics(one, name), rel=1e-6), name
    expected, actual = load_file(one / "model.safetensors"), load_file(two / "model.safetensors")
    assert actual.keys() == expected.keys()
    # The gradients are sums over the batch in another order: not the same numbers, but the same up to rounding.
    assert any(not torch.equal(actual[name], expected[name]) for name in expected), "only one process trained"
    for name, weight in expected.items():
        torch.testing.assert_close(actual[name], weight, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "data", [pytest.param("questions", marks=pytest.mark.grid), pytest.param("text", marks=pytest.mark.slow)]
)
def test_two_processes_train_in_stages_as_one_with_the_whole_batch(tmp_path, data, beginnings):  # noqa: F811
    section, stages = STAGES[data]
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(ARMT % (section.replace("BOOKS", str(beginnings["stories"])), stages))
    one, two = tmp_path / "one", tmp_path / "two"
    train(recipe, one, "one process")
    train(recipe, two, "forks")
    for name in ("loss", "validation_loss", "validation_penalty", "validation_exact_match", "tokens"):
        assert metrics(two, name) == pytest.approx(metrics(one, name), rel=1e-5), name
    assert metrics(two, "validation_penalty")
    expected, actual = (load_file(run / "model.safetensors") for run in (one, two))
    assert any(not torch.equal(actual[name], expected[name]) for name in expected), "only one process trained"
    for name, weight in expected.items():
        torch.testing.assert_close(actual[name], weight, rtol=0, atol=2e-5)
    (two / "run.json").unlink()
    shutil.rmtree(latest_complete(two)[0])
    train(recipe, two, "forks", "--resume")
    assert all(torch.equal(load_file(two / "model.safetensors")[name], actual[name]) for name in actual)
