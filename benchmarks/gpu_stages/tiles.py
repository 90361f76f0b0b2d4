"""Stage `tiles`: block shapes of kernel regression, to tune the built-in choice (`tiles_of`) on what is measured."""

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.gpu_stages.regression import BETA, deviation, inputs
from benchmarks.gpu_stages.settings import Settings
from benchmarks.gpu_stages.timing import milliseconds
from tessera.kernels import Biweight, Gaussian, ReLUmax
from tessera.ops.kernel_regression import Call, Window, triton

# Queries, pairs, warps, stages.
FORWARD = [[128, 64, 8, 3], [128, 128, 8, 2], [64, 64, 4, 3], [128, 64, 4, 3], [128, 32, 4, 4], [64, 128, 4, 2]]
BACKWARD = [[64, 64, 4, 2], [64, 64, 8, 2], [128, 64, 8, 2], [64, 128, 8, 2], [64, 32, 4, 3], [32, 64, 4, 3]]


def cases(settings: Settings) -> dict[str, Callable[[], dict]]:
    """One kernel of each family, at both head widths."""
    return {
        f"{kernel.name} x {width}": partial(compare, settings, kernel, width)
        for kernel in (Gaussian(), Biweight(), ReLUmax())
        for width in settings.pick((64, 128), (16,))
    }


def compare(settings: Settings, kernel, width: int) -> dict:
    """Milliseconds of the forward pass, and of forward and backward, by tiles; the first of each is the built-in."""
    length, heads = settings.pick(8192, 20), settings.pick(1024 // width, 1)
    *leaves, above = inputs(settings, settings.pick(2, 1), heads, length, width, settings.dtype)
    call = Call(*leaves, kernel, torch.full((), BETA, device=settings.device), window=Window())
    error = deviation(kernel, "triton", inputs(settings, 1, 1, settings.pick(300, 17), width, settings.dtype))
    runs, absent = {"forward built-in": partial(forward, call), "both built-in": partial(both, call, above)}, {}
    for shape in settings.pick(FORWARD, [[16, 32, 4, 1]]):
        runs[f"forward {shape}"] = partial(forward, call, forward_tiles=shape)
    for shape in settings.pick(BACKWARD, [[16, 32, 4, 1]]):
        runs[f"both {shape}"] = partial(both, call, above, backward_tiles=shape)
    for name, run in list(runs.items()):
        try:
            run()
        except Exception as failure:  # too much shared memory, for one
            absent[name] = f"{type(failure).__name__}: {failure}"[:100]
            del runs[name]
    times = milliseconds(settings, runs, budget=3.0)
    best = {sort: min((n for n in times if n.startswith(sort)), key=times.get) for sort in ("forward", "both")}
    return {"best": str(best), "milliseconds": times, "absent": absent, "deviation": error}


def forward(call: Call, **tiles: list[int]) -> None:
    """The forward pass, with what the backward pass would need."""
    triton.run(call, **tiles)


def both(call: Call, above: torch.Tensor, **tiles: list[int]) -> None:
    """Forward and backward."""
    torch.autograd.grad(triton.run(call, **tiles), (call.query, call.key, call.value), above)
