"""`tessera train` by several processes, and what its runs and an interruption leave."""

import json
import os
import shutil
import socket
import subprocess
import sys

LAUNCHERS = {
    "torchrun": "torch.distributed.run --nproc_per_node={} --master_port={} -m",
    # As on a machine with several GPUs; without any, accelerate's processes talk by gloo too.
    "accelerate": "accelerate.commands.launch --multi_gpu --num_machines=1 --mixed_precision=no --dynamo_backend=no "
    "--num_processes={} --main_process_port={} --module",
}


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


def interrupted(run, copy):
    """What a kill after step 3 leaves behind."""
    (copy / "checkpoints").mkdir(parents=True)
    shutil.copytree(run / "checkpoints" / "checkpoint-3", copy / "checkpoints" / "checkpoint-3")
    for name in ("recipe.yaml", "metrics.jsonl", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(run / name, copy / name)
    return copy
