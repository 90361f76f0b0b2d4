"""Times by device events, in turns, and the machine's ceilings."""

import functools
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.gpu_stages.settings import Settings

# Larger than the L2 cache of an H200 (60 MB): written between repetitions, so that inputs come from memory.
EVICTED_BYTES = 256 * 2**20


def milliseconds(
    settings: Settings, functions: dict[str, Callable[[], object]], budget: float = 2.0
) -> dict[str, float]:
    """Median time of each function; they take turns until `budget` seconds are spent, at least three each."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    evicted = torch.empty(settings.pick(EVICTED_BYTES, 16), dtype=torch.int8, device=settings.device)
    for function in functions.values():
        function()
    end = time.monotonic() + budget
    least = settings.pick(3, 1)
    while min(map(len, times.values())) < least or (time.monotonic() < end and not settings.dry):
        for name, function in functions.items():
            evicted.zero_()
            times[name].append(once(settings, function))
    return {name: statistics.median(each) for name, each in times.items()}


def once(settings: Settings, function: Callable[[], object]) -> float:
    """Milliseconds of one call on the device."""
    if settings.dry:
        start = time.perf_counter()
        function()
        return 1000 * (time.perf_counter() - start)
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    function()
    after.record()
    after.synchronize()
    return before.elapsed_time(after)


@functools.cache
def ceilings(settings: Settings) -> dict[str, float]:
    """Measured on random data: copies in GB/s (bytes read plus bytes written), bfloat16 products in TFLOP/s."""
    side, count = settings.pick(8192, 32), settings.pick(2**31, 1024)
    a, b = (torch.randn(side, side, device=settings.device, dtype=torch.bfloat16) for _ in range(2))
    source = torch.randint(0, 100, (count,), dtype=torch.int8, device=settings.device)
    target = torch.empty_like(source)
    times = milliseconds(settings, {"copy": lambda: target.copy_(source), "product": lambda: a @ b}, budget=1.0)
    return {
        "copy_gigabytes_per_second": 2 * count / times["copy"] / 1e6,
        "bf16_teraflops": 2 * side**3 / times["product"] / 1e9,
    }


def forward_and_backward(function: Callable[..., torch.Tensor], leaves: list[torch.Tensor], above: torch.Tensor):
    """A closure that runs `function(*leaves)` and its gradients."""

    def run() -> None:
        torch.autograd.grad(function(*leaves), leaves, above, allow_unused=True)

    return run
