"""Stage `averages`: leaky and gated average as a share of the measured copy bandwidth. Target: 60 %."""

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.gpu_stages.settings import Settings
from benchmarks.gpu_stages.timing import ceilings, milliseconds
from tessera.ops.gated_average import gated_average
from tessera.ops.leaky_average import leaky_average
from tessera.ops.linear_recurrence import triton_kernels

# Tensors of the size of x that must move at least: x, y forward; the gradient, y and dx backward, and x for the gates.
STREAMS = {"leaky": 5, "gated": 6}
# The last 1e-2 is bfloat16's own spacing, times a few for sums of it.
TOLERANCE = 4e-2


def cases(settings: Settings) -> dict[str, Callable[[], dict]]:
    """Training shapes (batch, heads, steps, width) of v1 and v2, and one long sequence."""
    shapes = settings.pick(
        [(64, 12, 512, 64), (8, 12, 4096, 64), (4, 16, 4096, 128), (1, 16, 65_536, 128)], [(1, 2, 17, 8)]
    )
    return {
        f"{name}, {' x '.join(map(str, shape))}": partial(measure, settings, name, shape)
        for name in STREAMS
        for shape in shapes
    }


def measure(settings: Settings, name: str, shape: tuple[int, int, int, int]) -> dict:
    """Forward and backward in bfloat16, by Triton and by the chunked scan."""
    batch, heads, steps, width = shape
    error = deviation(settings, name, (1, 2, settings.pick(700, 17), width))
    operation, leaves, above = prepared(settings, name, shape, settings.dtype)
    runs = {
        backend: lambda backend=backend: torch.autograd.grad(operation(backend), leaves, above)
        for backend in ("triton", "chunked")
    }
    runs |= {f"triton, {count} programs": with_programs(count, runs["triton"]) for count in (700, 2800)}
    times = milliseconds(settings, runs)
    moved = STREAMS[name] * batch * heads * steps * width * 2 / 1e6 / times["triton"]
    return {
        "milliseconds": times,
        "times_as_fast_as_chunked": times["chunked"] / times["triton"],
        "gigabytes_per_second": moved,
        "share_of_copy": moved / ceilings(settings)["copy_gigabytes_per_second"],
        "target": 0.6,
        "deviation": error,
    }


def with_programs(count: int, run: Callable[[], object]) -> Callable[[], None]:
    """`run` with another number of programs below which time is cut into segments, for tuning."""

    def changed() -> None:
        usual, triton_kernels.PROGRAMS = triton_kernels.PROGRAMS, count
        run()
        triton_kernels.PROGRAMS = usual

    return changed


def prepared(settings: Settings, name: str, shape: tuple[int, int, int, int], dtype: torch.dtype):
    """The operation as a function of its backend, its leaves, and the gradient of its output."""
    batch, heads, steps, width = shape
    device, precise = settings.device, torch.promote_types(dtype, torch.float32)
    generator = torch.Generator(device).manual_seed(0)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, device=device)

    x = normal(batch, steps, heads, width).bfloat16().to(dtype).transpose(1, 2).requires_grad_()
    above = normal(batch, steps, heads, width).bfloat16().to(dtype).transpose(1, 2)
    if name == "leaky":
        decay = torch.linspace(0.5, 0.999, heads, device=device).to(precise).requires_grad_()
        return lambda backend: leaky_average(x, decay, backend=backend)[0], [x, decay], above
    gate = normal(batch, heads, steps).to(precise).requires_grad_()
    decay = (-normal(batch, heads, steps).abs()).to(precise).requires_grad_()
    return lambda backend: gated_average(x, gate, decay, backend=backend)[0], [x, gate, decay], above


def deviation(settings: Settings, name: str, shape: tuple[int, int, int, int]) -> float:
    """Largest relative difference from the float64 scan, output and gradients; an error if it is too large."""
    results = []
    for backend, dtype in (("triton", settings.dtype), ("chunked", torch.float64)):
        operation, leaves, above = prepared(settings, name, shape, dtype)
        output = operation(backend)
        results.append([output, *torch.autograd.grad(output, leaves, above)])
    errors = [((a.double() - b).abs().max() / b.abs().max().clamp_min(1e-2)).item() for a, b in zip(*results)]
    if not all(error <= TOLERANCE for error in errors):
        raise ArithmeticError(f"{name} average is off by {max(errors):.1e} (allowed {TOLERANCE})")
    return max(errors)
