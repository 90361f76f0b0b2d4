"""What runs leave, and `tessera train` by several processes."""

import json
import os
import shutil
import socket
import subprocess
import sys

import torch
from safetensors.torch import load_file

LAUNCHERS = {
    "torchrun": "torch.distributed.run --nproc_per_node={} --master_port={} -m",
    # As on a machine with several GPUs; without any, accelerate's processes talk by gloo too.
    "accelerate": "accelerate.commands.launch --multi_gpu --num_machines=1 --mixed_precision=no --dynamo_backend=no "
    "--num_processes={} --main_process_port={} --module",
}
# One delay: the processes draw theirs from generators of their own. Heads are fewer than four processes: empty parts.
RECIPE = """
model: {type: memory_mosaic_v2, hidden_size: 32, num_layers: 2, num_heads: 2, intermediate_size: 48,
        short_term_span: 8, training_long_term_delay: [4, 4], long_term_delay: 4, tie_word_embeddings: true}
tokenizer: {type: byte}
data: {source: TEXT, context: 32}
training: {steps: 6, batch_size: 8, micro_batch_size: 2, learning_rate: 1.0e-3, warmup_steps: 1, log_every: 1,
           evaluate_every: 3, evaluate_sequences: 4, checkpoint_every: 3, keep_checkpoints: 2, precision: fp32,
           shard: true}
"""


def write_recipe(folder):
    """`RECIPE`, in shards, with its text."""
    (folder / "text.txt").write_text("Once upon a time there was a king, and the king had a daughter. " * 60)
    (folder / "recipe.yaml").write_text(RECIPE.replace("TEXT", str(folder / "text.txt")))
    return folder / "recipe.yaml"


def free_port():
    """One that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start(processes, recipe, run, *options, launcher="torchrun"):
    """The command, under way."""
    command = [sys.executable, "-m", *LAUNCHERS[launcher].format(processes, free_port()).split()]
    command += ["tessera.cli.main", "train", str(recipe), *options, "--output", str(run)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def train_by(processes, recipe, run, *options, launcher="torchrun"):
    """The command, to its end."""
    process = start(processes, recipe, run, *options, launcher=launcher)
    _, error = process.communicate(timeout=900)
    assert process.returncode == 0, error[-3000:]


def metrics(run, name):
    """All values of one metric of a run."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line[name] for line in lines if name in line]


def weights(run):
    """Those that a run has published."""
    return load_file(run / "model.safetensors")


def same_weights(run, other, atol=0.0):
    """Of both runs, bit for bit where `atol` is 0."""
    torch.testing.assert_close(weights(run), weights(other), rtol=0, atol=atol)


def interrupted(run, copy):
    """What a kill after step 3 leaves behind."""
    (copy / "checkpoints").mkdir(parents=True)
    shutil.copytree(run / "checkpoints" / "checkpoint-3", copy / "checkpoints" / "checkpoint-3")
    for name in ("recipe.yaml", "metrics.jsonl", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(run / name, copy / name)
    return copy
