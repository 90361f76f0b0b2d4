"""Speed of kernel regression on a CPU beside other attention code: forward + backward, 8 heads of 64, every kernel.

    OMP_NUM_THREADS=2 python -m benchmarks.kernels --out results/kernels/cpu.json

Each case runs in a fresh process, so that its peak memory is its own. Before anything is timed the operation is
compared with its float64 reference in the type that is timed. The other code is PyTorch's fused causal attention, dense
softmax attention and the `entmax` package over the dense matrix of scores (its `entmax_bisect` is what the published
code of Sparse Attention as Compact Kernel Regression runs for biweight and triweight). Cases that would not fit are
listed as skipped. There are two ratios: of the fastest repetitions by the wall clock, and of processor time over all
threads, which other load on the machine disturbs far less (`load_average` beside each case says how much there was).
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize, scaled_dot_product_attention

from tessera.base.files import write_text_atomically
from tessera.base.precision import has_fast_bfloat16
from tessera.evaluation.provenance import provenance
from tessera.kernels import kernel_from_config
from tessera.ops.kernel_regression import Window, kernel_regression

HEADS, WIDTH = 8, 64
# exp(2): the inverse bandwidth with which the published models start.
BETA = 7.389
KERNELS = {
    "gaussian": "gaussian",
    "epanechnikov": "epanechnikov",
    "biweight": "biweight",
    "triweight": "triweight",
    "rectified_polynomial r=1.5": {"name": "rectified_polynomial", "order": 1.5},
    "normalized_relu": "normalized_relu",
    "relumax": "relumax",
    "knn gaussian k=32": {"name": "knn", "base": "gaussian", "k": 32},
    "knn uniform k=32": {"name": "knn", "base": "uniform", "k": 32},
}
PEERS = ("fused softmax", "dense softmax", "sparsemax", "entmax15", "entmax_bisect 1.5", "entmax_bisect 4/3")
# The function of another package that a kernel replaces.
REPLACES = {"epanechnikov": "sparsemax", "biweight": "entmax_bisect 1.5", "triweight": "entmax_bisect 4/3"}
# How many copies of the dense matrix of scores these hold at once, measured at T = 2,048 and rounded up.
DENSE_COPIES = {"dense softmax": 4, "sparsemax": 9, "entmax15": 12, "entmax_bisect 1.5": 13, "entmax_bisect 4/3": 13}
TOLERANCE = {"float32": 1e-4, "bfloat16": 5e-2}


def inputs(length: int, dtype: torch.dtype) -> list[Tensor]:
    """Unit queries and keys, values, and the gradient of the output."""
    torch.manual_seed(0)
    query, key, value, above = (torch.randn(1, HEADS, length, WIDTH) for _ in range(4))
    leaves = [normalize(query, dim=-1), normalize(key, dim=-1), value]
    return [tensor.to(dtype).requires_grad_() for tensor in leaves] + [above.to(dtype)]


def ours(spec: str | dict, query: Tensor, key: Tensor, value: Tensor, backend: str | None = None) -> Tensor:
    """Contextual kernel regression: the strict past."""
    kernel = kernel_from_config(spec)
    slope, intercept = kernel.affine(
        torch.full((HEADS, 1), BETA, dtype=torch.promote_types(query.dtype, torch.float32))
    )
    return kernel_regression(
        query, key, value, kernel=kernel, slope=slope, intercept=intercept, window=Window(), backend=backend
    )


def fused_softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scaled_dot_product_attention(query, key, value, is_causal=True, scale=BETA)


def dense(weights: Callable[[Tensor], Tensor], query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention over the whole matrix of scores."""
    future = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).triu(1)
    scores = (BETA * query @ key.mT).masked_fill(future, -torch.inf)
    return weights(scores) @ value


def peer(name: str) -> Callable[..., Tensor]:
    """The attention code to compare with, as a function of query, key and value."""
    if name == "fused softmax":
        return fused_softmax
    if name == "dense softmax":
        return partial(dense, partial(torch.softmax, dim=-1))
    import entmax

    weights = {
        "sparsemax": partial(entmax.sparsemax, dim=-1),
        "entmax15": partial(entmax.entmax15, dim=-1),
        "entmax_bisect 1.5": partial(entmax.entmax_bisect, alpha=1.5, dim=-1),
        "entmax_bisect 4/3": partial(entmax.entmax_bisect, alpha=4 / 3, dim=-1),
    }
    return partial(dense, weights[name])


def deviation(spec: str | dict, dtype: torch.dtype, length: int = 257) -> float:
    """Largest difference from the float64 reference, output and gradients, relative to each one's largest entry."""
    *leaves, above = inputs(length, dtype)
    output = ours(spec, *leaves)
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = ours(spec, *wide, backend="reference")
    pairs = zip(
        [output, *torch.autograd.grad(output, leaves, above)],
        [expected, *torch.autograd.grad(expected, wide, above.double(), allow_unused=True)],
    )
    pairs = [(left.double(), torch.zeros_like(left).double() if right is None else right) for left, right in pairs]
    return max(((left - right).abs().max() / right.abs().max().clamp_min(1e-6)).item() for left, right in pairs)


def measure(case: dict) -> dict:
    """Time and peak memory of one case, in this process."""
    dtype, name = getattr(torch, case["dtype"]), case["name"]
    result = {**case, "megabytes_before": peak_megabytes()}
    if case["kind"] == "kernel":
        result["deviation"] = deviation(KERNELS[name], dtype)
        if not result["deviation"] < TOLERANCE[case["dtype"]]:
            raise SystemExit(f"{name} in {case['dtype']} is off by {result['deviation']:.1e}: not timed")
        run = partial(ours, KERNELS[name])
    else:
        run = peer(name)
    *leaves, above = inputs(case["length"], dtype)
    seconds, processor, started = [], [], time.perf_counter()
    while len(seconds) < case["repetitions"] + 1 and (not seconds or time.perf_counter() - started < case["budget"]):
        wall, cpu = time.perf_counter(), time.process_time()
        torch.autograd.grad(run(*leaves), leaves, above, allow_unused=True)
        seconds.append(time.perf_counter() - wall)
        processor.append(time.process_time() - cpu)
    # The first repetition warms up, unless it is the only one that the budget allowed.
    kept = slice(1, None) if len(seconds) > 1 else slice(None)
    result["seconds"] = round(statistics.median(seconds[kept]), 5)
    result["fastest_seconds"] = round(min(seconds[kept]), 5)
    result["processor_seconds"] = round(statistics.median(processor[kept]), 5)
    result["load_average"] = round(os.getloadavg()[0], 1)
    result["repetitions"] = len(seconds[kept])
    result["peak_megabytes"] = peak_megabytes()
    return result


def peak_megabytes() -> int:
    """The most memory this process ever held; before a case, that of the imports alone."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def cases(options: argparse.Namespace) -> list[dict]:
    """Every case of the run in order; what is compared runs close together, under the same load of the machine."""
    listed = []
    for dtype in options.dtypes:
        for length in options.sizes:
            common = {"length": length, "dtype": dtype, "repetitions": options.repetitions, "budget": options.budget}
            listed += [{"kind": "peer", "name": name, **common} for name in options.peers]
            listed += [{"kind": "kernel", "name": name, **common} for name in options.kernels]
    return listed


def reason_to_skip(case: dict, options: argparse.Namespace) -> str | None:
    copies = DENSE_COPIES.get(case["name"], 0) if case["kind"] == "peer" else 0
    gigabytes = copies * HEADS * case["length"] ** 2 * torch.finfo(getattr(torch, case["dtype"])).bits / 8 / 2**30
    if gigabytes > options.memory:
        return f"needs about {gigabytes:.0f} GB (limit {options.memory:g})"
    if case["name"] in PEERS[2:] and case["dtype"] == "bfloat16" and case["length"] > 2048:
        return "the entmax package in bfloat16 over this matrix takes minutes; its float32 case stands for it"
    return None


def in_fresh_process(case: dict) -> dict:
    """`measure` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.kernels", "--case", json.dumps(case)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout.splitlines()[-1])


def ratios(results: list[dict]) -> list[dict]:
    """For each kernel: time of what it replaces / its own (higher is better), its own / fused softmax's (lower is)."""
    done = {(r["length"], r["dtype"], r["name"]): r for r in results if "seconds" in r}
    lines = []
    for (length, dtype, name), result in done.items():
        if result["kind"] == "peer":
            continue
        line = {"length": length, "dtype": dtype, "kernel": name}
        for clock in ("fastest_seconds", "processor_seconds"):
            replaced = done.get((length, dtype, REPLACES.get(name)))
            if replaced:
                line[f"{replaced['name']} / this, {clock}"] = round(replaced[clock] / result[clock], 1)
            fused = done.get((length, dtype, "fused softmax"))
            if fused:
                line[f"this / fused softmax, {clock}"] = round(result[clock] / fused[clock], 2)
        lines.append(line)
    return lines


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time kernel regression and other attention code, forward + backward.")
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 2048, 4096, 8192], help="sequence lengths")
    # Without instructions for it, bfloat16 takes a hundred times longer than float32.
    dtypes = list(TOLERANCE) if has_fast_bfloat16("cpu") else ["float32"]
    parser.add_argument("--dtypes", nargs="+", choices=list(TOLERANCE), default=dtypes)
    parser.add_argument("--kernels", nargs="+", choices=list(KERNELS), default=list(KERNELS))
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--repetitions", type=int, default=5, help="timed repetitions after one warm-up")
    parser.add_argument("--budget", type=float, default=10.0, help="no new repetition after this many seconds")
    parser.add_argument("--memory", type=float, default=7.5, help="skip cases of other code that need more, in GB")
    parser.add_argument("--out", type=Path, default=Path("results/kernels/cpu.json"))
    parser.add_argument("--keep", action="store_true", help="do not repeat cases that --out holds already")
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.case:
        print(json.dumps(measure(options.case)))
        return
    started, results = time.perf_counter(), []
    measured = already_measured(options.out) if options.keep else {}
    for case in cases(options):
        if identity(case) in measured:
            results.append(measured.pop(identity(case)))
            continue
        reason = reason_to_skip(case, options)
        results.append({**case, "skipped": reason} if reason else in_fresh_process(case))
        line = results[-1]
        shown = reason or f"{line['seconds']:8.4f} s {line['peak_megabytes']:6d} MB"
        print(f"T={case['length']:<5} {case['dtype']:9} {case['name']:28} {shown}", flush=True)
        write(options.out, [*results, *measured.values()], time.perf_counter() - started)


def identity(case: dict) -> tuple:
    return case["length"], case["dtype"], case["name"]


def already_measured(path: Path) -> dict[tuple, dict]:
    """The results in `path`, if it exists."""
    return {identity(r): r for r in json.loads(path.read_text())["results"]} if path.exists() else {}


def write(path: Path, results: list[dict], seconds: float) -> None:
    """All results so far, so that a run that is cut short leaves what it measured."""
    configuration = {"heads": HEADS, "width": WIDTH, "inverse_bandwidth": BETA, "window": "strict past"}
    record = provenance(configuration=configuration, seed=0, wall_seconds=seconds)
    record["versions"]["entmax"] = version("entmax")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(path, json.dumps({**record, "results": results, "ratios": ratios(results)}, indent=1) + "\n")


if __name__ == "__main__":
    main()
