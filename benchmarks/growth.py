"""How time and memory grow with the length of a text: of a training step, and of one more decoded token.

    python -m benchmarks.growth [--longest 65536] [--most-seconds 60]

v1 with every kernel, v2, ARMT, GPT-2 and Llama, all of 2 layers x 128 with 2 heads, one text, one thread. Each model is
a process of its own. A training step is forward and backward; a token is decoded behind a state of random pairs (ARMT
reads the text, in segments of 512). Times are processor time, the least of several; memory of a step is what it adds to
the process, of decoding the state's bytes. What would take more than --most-seconds or --most-mb by the length before
it is left out. Writes results/growth/cpu.json, a table beside it, and a log-log figure; exponents are those of the last
two octaves.
"""

import argparse
import ctypes
import gc
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize
from transformers import AutoModelForCausalLM, DynamicCache

from benchmarks.armt_side import measure
from benchmarks.v2 import filled_state
from tessera import MemoryMosaicConfig, MemoryMosaicForCausalLM, MemoryMosaicV2Config, MemoryMosaicV2ForCausalLM, wrap
from tessera.base.files import write_text_atomically
from tessera.evaluation.provenance import provenance
from tessera.models.presets import matching_llama_config
from tessera.models.transformer import transformer_config
from tessera.papers.tables import markdown
from tessera.recall.pair_store import PairStore

SIZES = {"vocab_size": 512, "hidden_size": 128, "num_layers": 2, "num_heads": 2}
V2 = {**SIZES, "intermediate_size": 352}
KNN = {"name": "knn", "base": "gaussian", "k": 32}
KERNELS: dict[str, Any] = {"gaussian": "gaussian", "epanechnikov": "epanechnikov", "biweight": "biweight"}
KERNELS |= {"triweight": "triweight", "normalized_relu": "normalized_relu", "relumax": "relumax", "knn": KNN}
MODELS = (*(f"v1, {kernel}" for kernel in KERNELS), "v2", "ARMT", "GPT-2", "Llama")
SHORTEST, SEGMENT = 512, 512
TOKENS, REPETITIONS = 8, 3


def build(name: str, longest: int) -> nn.Module:
    """The model of that name, for texts of up to `longest` tokens."""
    torch.manual_seed(0)
    if name == "v2":
        return MemoryMosaicV2ForCausalLM(MemoryMosaicV2Config(**V2))
    if name == "Llama":
        return AutoModelForCausalLM.from_config(matching_llama_config(MemoryMosaicV2Config(**V2)))
    if name.startswith("v1"):
        kernel = KERNELS[name.removeprefix("v1, ")]
        return MemoryMosaicForCausalLM(MemoryMosaicConfig(**SIZES, kernel=kernel, num_persistent_slots=448))
    positions = 2 * SEGMENT if name == "ARMT" else longest + TOKENS
    gpt2 = AutoModelForCausalLM.from_config(transformer_config(**SIZES, max_positions=positions))
    return wrap(gpt2, SEGMENT, 10, 64) if name == "ARMT" else gpt2


def training_step(model: nn.Module, length: int) -> Callable[[], None]:
    """Forward and backward of one text."""
    ids = torch.randint(0, SIZES["vocab_size"], (1, length))
    model.train()

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        model.zero_grad()

    return step


@torch.no_grad()
def decoding(name: str, model: nn.Module, length: int) -> tuple[Callable[[], None], int]:
    """`TOKENS` tokens behind a state of `length` steps, and the bytes of that state."""
    model.eval()
    token = torch.zeros(1, 1, dtype=torch.long)
    if name in ("GPT-2", "Llama"):
        heads, width = SIZES["num_heads"], SIZES["hidden_size"] // SIZES["num_heads"]
        cache = DynamicCache(config=model.config)
        for layer in range(SIZES["num_layers"]):
            cache.update(*torch.randn(2, 1, heads, length, width), layer)
        size = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
        return lambda: _greedy(model, token, cache, lambda: cache.crop(-TOKENS)), size
    if name == "ARMT":
        ids = torch.randint(0, SIZES["vocab_size"], (1, length + 1))
        state = model(ids, use_cache=True, skip_logits=True).past_key_values
        memory, layers = state.groups[0][1].memory, state.groups[0][1].attention.layers
        size = memory.num_bytes() + sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)
        return lambda: _greedy(model, token, state), size
    state = filled_state(model, length) if name == "v2" else _filled_v1(model, token, length)
    return lambda: _greedy(model, token, state), state.num_bytes()


def _filled_v1(model: nn.Module, token: torch.Tensor, length: int) -> Any:
    state = model(token, use_cache=True).past_key_values
    layers = []
    for contextual, persistent in state.layers:
        shape = (1, SIZES["num_heads"], length - 1, SIZES["hidden_size"] // SIZES["num_heads"])
        keys, values = (normalize(torch.randn(shape), dim=-1) for _ in range(2))
        layers.append((replace(contextual, pairs=PairStore.of(keys, values).with_room(length + TOKENS)), persistent))
    return replace(state, layers=tuple(layers), length=length)


@torch.no_grad()
def _greedy(model: nn.Module, token: torch.Tensor, state: Any, undo: Callable[[], None] = lambda: None) -> None:
    for _ in range(TOKENS):
        output = model(input_ids=token, past_key_values=state, use_cache=True)
        state = output.past_key_values
    undo()


def measured(name: str, longest: int, most_seconds: float, most_mb: float) -> list[dict[str, Any]]:
    """A row for each length: seconds and MB of both kinds of work, or None where it is left out."""
    model, rows, length = build(name, longest), [], SHORTEST
    while length <= longest:
        before, row = rows[-1] if rows else {}, {"length": length}
        for kind in ("training", "decoding"):
            seconds, megabytes = before.get(f"{kind} seconds", 0.0), before.get(f"{kind} MB", 0.0)
            fits = None not in (seconds, megabytes) and 4 * seconds < most_seconds and 3 * megabytes < most_mb
            if not fits:
                row |= {f"{kind} seconds": None, f"{kind} MB": None}
                continue
            size = None
            if kind == "training":
                work, per = training_step(model, length), 1
            else:
                (work, size), per = decoding(name, model, length), TOKENS
            work()
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)  # memory that is kept for later calls is no memory that rests
            resting = measure(lambda: None)["peak_mb"]
            found = [measure(work) for _ in range(REPETITIONS)]
            row[f"{kind} seconds"] = min(one["cpu_seconds"] for one in found) / per
            row[f"{kind} MB"] = max(one["peak_mb"] for one in found) - resting if size is None else size / 2**20
        rows.append(row)
        length *= 2
    return rows


def slope(rows: list[dict[str, Any]], column: str) -> float | None:
    """The exponent with which `column` grows over the last two octaves that were measured."""
    known = [(row["length"], row[column]) for row in rows if row[column] and row[column] > 0][-3:]
    if len(known) < 2:
        return None
    return math.log(known[-1][1] / known[0][1]) / math.log(known[-1][0] / known[0][0])


def table(result: dict[str, list[dict[str, Any]]]) -> str:
    """Milliseconds by model and length, one table for each kind of work, and the exponents."""
    parts = []
    for kind, unit in (("training", "a training step"), ("decoding", "one more token")):
        lengths = [row["length"] for row in next(iter(result.values()))]
        headings = [
            f"ms of {unit}",
            *(f"{length:,}" for length in lengths),
            "time ~ T^",
            "MB at the end",
            "memory ~ T^",
        ]
        lines = []
        for name, rows in result.items():
            known = [row[f"{kind} MB"] for row in rows if row[f"{kind} MB"] is not None]
            exponents = [slope(rows, f"{kind} {what}") for what in ("seconds", "MB")]
            time_exponent, memory_exponent = ("" if e is None else f"{e:.2f}" for e in exponents)
            cells = [_milliseconds(row[f"{kind} seconds"]) for row in rows]
            lines.append([name, *cells, time_exponent, f"{known[-1]:.2f}", memory_exponent])
        parts.append(markdown(headings, lines))
    return "\n\n".join(parts) + "\n"


def _milliseconds(seconds: float | None) -> str:
    return "left out" if seconds is None else f"{1000 * seconds:,.4g}"


def draw(result: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Both kinds of work, on axes with logarithms."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(12, 5))
    colors = dict(zip(MODELS, pyplot.get_cmap("tab20").colors, strict=False))
    for axis, kind in zip(axes, ("training", "decoding"), strict=True):
        for name, rows in result.items():
            known = [(row["length"], row[f"{kind} seconds"]) for row in rows if row[f"{kind} seconds"]]
            style = {"color": colors[name], "linestyle": "-" if name.startswith("v1") else "--"}
            axis.loglog(*zip(*known, strict=True), marker=".", label=name, base=2, **style)
        axis.set(
            xlabel="tokens", ylabel="seconds", title={"training": "a training step", "decoding": "one token"}[kind]
        )
    axes[0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--longest", type=int, default=65_536)
    parser.add_argument("--most-seconds", type=float, default=60.0, help="of one step")
    parser.add_argument("--most-mb", type=float, default=6000.0, help="that one step adds")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--out", type=Path, default=Path("results/growth/cpu.json"))
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.one:
        return print(json.dumps(measured(options.one, options.longest, options.most_seconds, options.most_mb)))
    began, result = time.perf_counter(), {}
    for name in options.models:
        print(name, file=sys.stderr, flush=True)
        limits = ["--longest", options.longest, "--most-seconds", options.most_seconds, "--most-mb", options.most_mb]
        command = [sys.executable, "-m", "benchmarks.growth", "--one", name, *map(str, limits)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
        result[name] = json.loads(done.stdout.splitlines()[-1])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    record = provenance(configuration={**SIZES, "longest": options.longest}, wall_seconds=time.perf_counter() - began)
    write_text_atomically(options.out, json.dumps({"provenance": record, "rows": result}, indent=1) + "\n")
    write_text_atomically(options.out.with_suffix(".md"), table(result))
    draw(result, options.out.with_suffix(".png"))
    print(table(result))


if __name__ == "__main__":
    main()
