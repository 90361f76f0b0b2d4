"""A Memory Mosaic against the equal transformer and the published code: training steps, decoding, memory.

    OMP_NUM_THREADS=2 python -m benchmarks.language_models --reference PATH --out results/language_models/cpu.json

Everything is compared in one run: the models take turns, and the medians and ratios are over the turns. `--reference`
is a checkout of facebookresearch/MemoryMosaics; its nanoMosaics model joins in where it can. Before timing,
the mosaic's cached decoding is checked against its full forward pass. Training is in bfloat16 (autocast) where the
processor has instructions for it, otherwise in float32; decoding is in float32.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

from tessera.base.files import write_text_atomically
from tessera.base.precision import autocast, resolve_precision
from tessera.base.state import State
from tessera.evaluation.provenance import provenance
from tessera.models.small_models import build_small_model

SIZE = {"vocab_size": 8192, "hidden_size": 384, "num_layers": 6, "num_heads": 6}
SLOTS = 7 * SIZE["hidden_size"] // 2  # per head, as the table of small models has them
BATCH = 8
CONTEXTS = (32, 2048)
NEW_TOKENS = 32


def build(name: str, steps: int, reference: Path | None = None) -> nn.Module:
    """The model called `name`, for sequences of up to `steps` tokens, without dropout."""
    if name != "published":
        return build_small_model(name, **SIZE, max_positions=steps)
    torch.manual_seed(0)
    sys.path.insert(0, str(reference / "nanoMosaics"))
    from mosaic_model import MemoryMosaic
    from mosaic_model import MemoryMosaicConfig as PublishedConfig

    names = {"n_layer": SIZE["num_layers"], "n_head": SIZE["num_heads"], "n_embd": SIZE["hidden_size"]}
    config = PublishedConfig(block_size=steps, vocab_size=SIZE["vocab_size"], pmem_size=SLOTS, bias=False, **names)
    return MemoryMosaic(config)


def training_step(model: nn.Module, steps: int) -> Callable[[], None]:
    """One step of AdamW on a fixed batch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, SIZE["vocab_size"], (BATCH, steps))
    precision = resolve_precision("auto", "cpu")
    published = type(model).__module__ == "mosaic_model"
    model.train()

    def step() -> None:
        with autocast(precision, "cpu"):
            loss = model(ids[:, :-1], ids[:, 1:].contiguous())[1] if published else model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def decoding(model: nn.Module, context: int) -> Callable[[], None]:
    """`NEW_TOKENS` greedy tokens behind a context read beforehand (the published code rereads it each time).

    A transformer's cache is cut back to the context afterwards. A memory goes on: to go back and write again would
    copy its pairs, as a second continuation of a text does and decoding does not.
    """
    ids = torch.randint(0, SIZE["vocab_size"], (1, context))
    model.eval()
    if type(model).__module__ == "mosaic_model":
        return lambda: model.generate(ids, NEW_TOKENS, top_k=1)
    with torch.inference_mode():
        states = [model(ids[:, :-1], use_cache=True).past_key_values]

    def generate() -> None:
        token = ids[:, -1:]
        with torch.inference_mode():
            for _ in range(NEW_TOKENS):
                output = model(token, past_key_values=states[0], use_cache=True)
                states[0], token = output.past_key_values, output.logits[:, -1:].argmax(dim=-1)
        if not isinstance(states[0], State):
            states[0].crop(-NEW_TOKENS)

    return generate


def take_turns(runs: dict[str, Callable[[], None]], repetitions: int, title: str) -> dict[str, list[float]]:
    """Seconds of each run in each of `repetitions` turns, after one that is not counted."""
    seconds = {name: [] for name in runs}
    for turn in tqdm(range(repetitions + 1), desc=title, leave=False):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def summary(seconds: dict[str, list[float]], tokens: int) -> dict[str, dict]:
    """Median tokens per second, and the ratio to every other model as the median over turns."""
    result = {}
    for name, mine in seconds.items():
        ratios = {
            other: round(statistics.median(b / a for a, b in zip(mine, theirs)), 3)
            for other, theirs in seconds.items()
            if other != name
        }
        result[name] = {"tokens_per_second": round(tokens / statistics.median(mine), 1), "times_as_fast_as": ratios}
    return result


def check() -> None:
    """Cached decoding equals the full forward pass: a speed is worth nothing before that."""
    model = build("mosaic", 64).eval()
    ids = torch.randint(0, SIZE["vocab_size"], (1, 48))
    with torch.inference_mode():
        state = model(ids[:, :40], use_cache=True).past_key_values
        last = model(ids[:, 40:], past_key_values=state).logits
        torch.testing.assert_close(last, model(ids).logits[:, 40:], rtol=0, atol=1e-4)


def peak_memory(name: str, steps: int, reference: Path | None) -> float:
    """MiB that two training steps add to the process, measured in one of its own (Linux)."""
    command = [sys.executable, "-m", "benchmarks.language_models", "--peak-of", name, "--steps", str(steps)]
    command += ["--reference", str(reference)] if reference else []
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def report_peak(name: str, steps: int, reference: Path | None) -> None:
    model = build(name, steps, reference)
    before = peak_resident()
    step = training_step(model, steps)
    step()
    step()
    print(peak_resident() - before)


def peak_resident() -> float:
    """MiB of this process at its largest. (getrusage would count what the parent held when it started this one.)"""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024


def main() -> None:
    """Measure, print a table, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, help="a checkout of facebookresearch/MemoryMosaics")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--steps", type=int, default=512, help="context length of a training sequence")
    parser.add_argument("--peak-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak_of:
        return report_peak(arguments.peak_of, arguments.steps, arguments.reference)
    check()
    names = ["mosaic", "transformer"] + (["published"] if arguments.reference else [])
    begin, results = time.perf_counter(), {}
    runs = {name: training_step(build(name, arguments.steps, arguments.reference), arguments.steps) for name in names}
    seconds = take_turns(runs, arguments.repetitions, "training")
    results[f"training, context {arguments.steps}"] = summary(seconds, BATCH * arguments.steps)
    for context in CONTEXTS:
        longest = context + NEW_TOKENS
        runs = {name: decoding(build(name, longest, arguments.reference), context) for name in names}
        # The published code rereads the context for every token: seconds per token at 2,048.
        if context > 512:
            runs.pop("published", None)
        seconds = take_turns(runs, arguments.repetitions, f"decoding at {context}")
        results[f"decoding, context {context}"] = summary(seconds, NEW_TOKENS)
    peaks = {name: round(peak_memory(name, 2048, arguments.reference)) for name in names}
    results["peak memory of a training step, context 2048, MiB"] = peaks
    print(json.dumps(results, indent=1))
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        training = "bfloat16 autocast" if resolve_precision("auto", "cpu") == "bf16" else "float32"
        setting = {**SIZE, "slots": SLOTS, "batch": BATCH, "training dtype": training, "decoding": "float32"}
        record = provenance(configuration=setting, seed=0, wall_seconds=time.perf_counter() - begin)
        write_text_atomically(arguments.out, json.dumps({"provenance": record, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
