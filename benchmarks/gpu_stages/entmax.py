"""Stage `entmax`: compact kernels against AdaSplash, the dense `entmax` path and fused softmax attention.

Targets: at least 1.0 x AdaSplash where it supports the case, at least 5 x the dense path where it does not.
AdaSplash comes from PyPI; where it cannot be imported its column is absent.
"""

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.gpu_stages.regression import (
    adasplash_peers,
    checked,
    dense_entmax,
    fused_attention,
    inputs,
    ours,
)
from benchmarks.gpu_stages.settings import Settings
from benchmarks.gpu_stages.timing import ceilings, forward_and_backward, milliseconds
from tessera.kernels import Biweight, Epanechnikov, NormalizedReLU, ReLUmax, Triweight

ALPHAS = {Biweight(): 1.5, Epanechnikov(): 2.0, Triweight(): 4 / 3}
# The dense path holds about thirteen T x T matrices.
LONGEST_DENSE = 8192


def cases(settings: Settings) -> dict[str, Callable[[], dict]]:
    """alpha = 1.5 first; ReLUmax and normalised ReLU are compared with fused attention only."""
    cases_by_name: dict[str, Callable[[], dict]] = {}
    for kernel in (*ALPHAS, ReLUmax(), NormalizedReLU()):
        for length in settings.pick((8192, 16_384, 32_768, 65_536), (20,)):
            cases_by_name[f"{kernel.name}, {length}"] = partial(compare, settings, kernel, length)
    for length in settings.pick((1024, 4096, 16_384, 65_536), (20,)):
        cases_by_name[f"one query, {length}"] = partial(one_query, settings, length)
    return cases_by_name


@torch.no_grad()
def one_query(settings: Settings, length: int) -> dict:
    """Decoding with alpha = 1.5 behind so many pairs: Triton's one launch against the reference, which waits for each
    of its sweeps. Where the ratio falls below 1 `LONGEST_TRITON_SINGLE` should lie."""
    query, key, value, _ = inputs(settings, 1, settings.pick(12, 1), length, settings.pick(64, 16), settings.dtype)
    leaves, masks = [query[:, :, -1:], key, value], {"query_offset": length}
    error = checked(Biweight(), "triton", [*leaves, query], **masks)
    backends = {name: partial(ours, Biweight(), *leaves, backend=name, **masks) for name in ("triton", "reference")}
    times = milliseconds(settings, backends)
    return {"milliseconds": times, "ratio": times["reference"] / times["triton"], "deviation": error}


def compare(settings: Settings, kernel, length: int) -> dict:
    """Forward and backward at 8 heads of 64, bfloat16; `ratios` > 1: faster than the other code."""
    width, heads, alpha = settings.pick(64, 16), settings.pick(8, 1), ALPHAS.get(kernel)
    error = checked(kernel, "triton", inputs(settings, 1, 2, settings.pick(513, 17), width, settings.dtype))
    # Contiguous, which AdaSplash asks for.
    tensors = inputs(settings, 1, heads, length, width, settings.dtype)
    *leaves, above = [tensor.detach().contiguous().requires_grad_(tensor.requires_grad) for tensor in tensors]
    runs = {"ours": forward_and_backward(partial(ours, kernel, backend="triton"), leaves, above)}
    runs["fused_softmax"] = forward_and_backward(fused_attention, leaves, above)
    absent = {}
    if alpha is not None:
        peers = adasplash_peers(alpha) if not settings.dry else {}
        if length <= LONGEST_DENSE:
            peers["dense"] = partial(dense_entmax, alpha)
        for name, peer in peers.items():
            runs[name] = forward_and_backward(peer, leaves, above)
        runs, absent = without_broken(runs)
    times = milliseconds(settings, runs)
    # The work of softmax attention, so that the share says how fast attention with this kernel is.
    teraflops = 7 * heads * length**2 * width / 1e12
    return {
        "milliseconds": times,
        "share_of_bf16_products": teraflops / times["ours"] * 1e3 / ceilings(settings)["bf16_teraflops"],
        "ratios": {name: time / times["ours"] for name, time in times.items() if name != "ours"},
        "targets": {"adasplash": 1.0, "dense": 5.0},
        "deviation": error,
        "absent": absent,
    }


def without_broken(runs: dict[str, Callable[[], None]]) -> tuple[dict[str, Callable[[], None]], dict[str, str]]:
    """The runs of other code that work here at all, and why the others do not."""
    absent = {}
    for name, run in list(runs.items()):
        if name == "ours":
            continue
        try:
            run()
        except Exception as error:
            absent[name] = f"{type(error).__name__}: {error}"[:200]
            del runs[name]
    return runs, absent
