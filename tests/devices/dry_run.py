"""Run the library on a device that holds no data (`pretend_gpu`) and print, as JSON, what each part did there.

python -m tests.devices.dry_run models mistakes
python -m tests.devices.dry_run other_models
python -m tests.devices.dry_run experiments
"""

import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import nn

from benchmarks.pretend_gpu import PretendGPU, pretend_gpu
from tessera.models.recurrence import read_stream
from tessera.papers.experiment import EXPERIMENTS, RunContext, RunSelection
from tests.models.armt.bases import make as wrapped
from tests.models.contract import v1, v2

STEPS = 40


def models() -> Iterator[tuple[str, Callable[[PretendGPU], None]]]:
    """A training step, and two steps of decoding, of a model of each kind; v2 has every memory of v1."""
    yield from _trained_and_decoding("v1", ("normalized_relu",), ())
    yield from _trained_and_decoding("v2", ("gaussian", "biweight"), ("gaussian", "biweight"))
    yield "armt", partial(train, wrapped("armt").float())
    yield "armt reads", partial(read, wrapped("armt").float())


def other_models() -> Iterator[tuple[str, Callable[[PretendGPU], None]]]:
    """The same of the others."""
    yield from _trained_and_decoding("v1", ("gaussian", "biweight", "relumax"), ("gaussian", "biweight"))
    for kind in ("rmt", "prmt"):
        yield kind, partial(train, wrapped(kind).float())


def _trained_and_decoding(version: str, trained: tuple[str, ...], decoding: tuple[str, ...]) -> Iterator:
    make = {"v1": v1, "v2": v2}[version]
    for kernel in trained:
        yield f"{version} {kernel}", partial(train, make(num_layers=1, kernel=kernel))
    for kernel in decoding:
        yield f"{version} {kernel} decodes", partial(decode, make(num_layers=1, kernel=kernel))


def train(model: nn.Module, gpu: PretendGPU) -> None:
    """One step of AdamW under bfloat16 autocast; the loss stays on the device."""
    model = model.to(gpu.device).train()
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.zeros(2, STEPS, dtype=torch.long, device=gpu.device)
    with torch.autocast("gpu", torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    assert all(parameter.grad.device.type == "gpu" for parameter in model.parameters() if parameter.grad is not None)


@torch.inference_mode()
def decode(model: nn.Module, gpu: PretendGPU) -> None:
    """Two tokens behind a context, in bfloat16."""
    model = model.to(gpu.device, torch.bfloat16).eval()
    output = model(input_ids=torch.zeros(2, STEPS, dtype=torch.long, device=gpu.device), use_cache=True)
    for _ in range(2):
        token = output.logits[:, -1:].argmax(dim=-1)
        output = model(input_ids=token, past_key_values=output.past_key_values, use_cache=True)


def read(model: nn.Module, gpu: PretendGPU) -> None:
    """Five segments from an iterator."""
    read_stream(model.to(gpu.device), iter(range(STEPS)))


def experiments() -> Iterator[tuple[str, Callable[[PretendGPU], None]]]:
    """Training and evaluation of every model that the experiments' smallest budgets know, a rule or task each."""
    for name in EXPERIMENTS:
        seen = set()
        for run in EXPERIMENTS[name].runs(RunSelection("smoke")):
            model = run.key.split("/")[1 if name in ("length_generalization", "armt_language") else 0]
            if model not in seen:
                seen.add(model)
                yield f"{name}: {run.key}", partial(execute, name, run)


def execute(name, run, gpu: PretendGPU) -> None:
    """One run as `tessera reproduce` does it."""
    with tempfile.TemporaryDirectory() as folder:
        EXPERIMENTS[name].execute(run, RunContext(Path(folder), device=str(gpu.device)))


def mistakes() -> Iterator[tuple[str, Callable[[PretendGPU], None]]]:
    """What must be noticed, and what must not."""
    here = torch.ones(3)
    yield "left behind", lambda gpu: torch.ones(3, device=gpu.device) @ here
    yield (
        "waits",
        lambda gpu: [float(here.to(gpu.device).sum()), here.to(gpu.device).cpu(), here.copy_(here.to(gpu.device))],
    )
    yield "nothing", lambda gpu: (here.to(gpu.device) * 2 + torch.zeros((), device=gpu.device)).sum()


def outcome(case: Callable[[PretendGPU], None]) -> dict:
    """What went wrong (or None), the waits, and the library's operators that ran."""
    with pretend_gpu() as gpu:
        try:
            case(gpu)
            error = None
        except Exception:
            error = traceback.format_exc()[-1500:]
    return {"error": error, "waits": gpu.waits, "operators": gpu.operators}


if __name__ == "__main__":
    parts = {"models": models, "other_models": other_models, "experiments": experiments, "mistakes": mistakes}
    print(json.dumps({name: outcome(case) for part in sys.argv[1:] for name, case in parts[part]()}))
