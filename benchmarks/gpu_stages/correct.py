"""Stage `correct`: every Triton implementation against float64; the test suite's contract first."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import torch

from benchmarks.gpu_stages.regression import TOLERANCE, checked, inputs, ours
from benchmarks.gpu_stages.settings import Settings
from tessera.kernels import Biweight, Epanechnikov, Gaussian, NormalizedReLU, RectifiedPolynomial, ReLUmax, Triweight
from tessera.ops.kernel_regression import Window

MOST_PROCESSES = 16  # each holds half a gigabyte of the GPU before it has a tensor
KERNELS = (Gaussian(), Epanechnikov(), Biweight(), Triweight(), RectifiedPolynomial(1.5), ReLUmax(), NormalizedReLU())


def cases(settings: Settings) -> dict[str, Callable[[], dict]]:
    """The contract suite as it is, then kernel regression at more sizes than a test suite can afford."""
    cases_by_name: dict[str, Callable[[], dict]] = {"contract suite": partial(contract_suite, settings)}
    for kernel in KERNELS:
        cases_by_name[kernel.name] = partial(one_kernel, settings, kernel)
    for length in settings.pick((1, 2, 127, 128, 129, 4096, 65_536), (1, 17)):
        cases_by_name[f"length {length}"] = partial(one_length, settings, length)
    return cases_by_name


def contract_suite(settings: Settings) -> dict:
    """The tests of the operations, on this device; a process per core, since compilation takes most of the time."""
    real = ["tests/ops", "tests/devices", "-m", "not slow", "-k", "triton or operators"]
    if importlib.util.find_spec("xdist"):
        real += ["-n", str(min(MOST_PROCESSES, os.cpu_count() or 1))]
    selected = settings.pick(real, ["tests/ops/association_matrix/test_triton.py"])
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:benchmark", *selected]
    done = subprocess.run(command, capture_output=True, text=True)
    summary = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-300:]
    if done.returncode:
        raise AssertionError(
            "\n".join(line for line in done.stdout.splitlines() if line.startswith("FAILED"))[:400] + summary
        )
    return {"summary": summary}


def one_kernel(settings: Settings, kernel) -> dict:
    """Dtypes by head widths for the strict past, then windows and documents in float32."""
    length, worst = settings.pick(1025, 17), {}
    for dtype in settings.pick(tuple(TOLERANCE), (torch.float32, torch.bfloat16)):
        for width in settings.pick((32, 64, 128), (16,)):
            tensors = inputs(settings, 2, 2, length, width, dtype)
            worst[f"{dtype} {width}".removeprefix("torch.")] = checked(kernel, "triton", tensors)
    tensors = inputs(settings, 2, 1, length, settings.pick(64, 8), torch.float32)
    for name, masks in windows(settings, length).items():
        worst[name] = checked(kernel, "triton", tensors, **masks)
    return {"deviation": worst, "largest": max(worst.values())}


def windows(settings: Settings, length: int) -> dict[str, dict]:
    """Every sort of mask."""
    delay = torch.tensor([length // 4, length // 2], device=settings.device)
    documents = (torch.rand(2, length, device=settings.device) < 8 / length).cumsum(1)
    packed = {"query_documents": documents, "pair_documents": documents}
    masks = {
        "delayed": {"window": Window(length // 4)},
        "delays": {"window": Window(delay)},
        "spanned": {"window": Window(span=length // 4)},
        "delayed and spanned": {"window": Window(3, length // 3)},
        "documents": {"window": Window(), **packed},
        "everything": {"window": None},
    }
    return settings.pick(masks, {name: masks[name] for name in ("delays", "documents")})


def one_length(settings: Settings, length: int) -> dict:
    """Output and gradients at a length; where the dense reference would not fit, the outputs of the last queries."""
    worst = {}
    for kernel in (Gaussian(), Biweight(), Epanechnikov()):
        tensors = inputs(settings, 1, 1, length, settings.pick(64, 8), torch.float32)
        if length <= 4096:
            worst[kernel.name] = checked(kernel, "triton", tensors) if length > 1 else empty_memory(kernel, tensors)
            continue
        query, key, value, _ = (tensor.detach() for tensor in tensors)
        output = ours(kernel, query, key, value, backend="triton")[:, :, -64:].double()
        window = {"window": Window(), "query_offset": length - 64}
        last = (query[:, :, -64:].double(), key.double(), value.double())
        expected = ours(kernel, *last, backend="reference", **window)
        worst[kernel.name] = ((output - expected).abs().max() / expected.abs().max()).item()
        assert worst[kernel.name] <= TOLERANCE[torch.float32], worst
    return {"deviation": worst, "largest": max(worst.values())}


def empty_memory(kernel, tensors: list[torch.Tensor]) -> float:
    """One query sees no pair: its output must be exactly 0."""
    return ours(kernel, *tensors[:3], backend="triton").detach().abs().max().item()
