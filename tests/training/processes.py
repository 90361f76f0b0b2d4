"""`tessera train` by several processes, and what its runs and an interruption leave."""

import json
import shutil
import socket
import subprocess
import sys


def start(processes, recipe, run, *options):
    """The command, under way."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={processes}", f"--master_port={port}"]
    command += ["-m", "tessera.cli.main", "train", str(recipe), *options, "--output", str(run)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def train_by(processes, recipe, run, *options):
    """The command, to its end."""
    process = start(processes, recipe, run, *options)
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
