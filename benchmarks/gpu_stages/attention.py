"""Stage `attention`: the Gaussian contextual memory against PyTorch's fused causal attention. Target: 0.9 x."""

from collections.abc import Callable
from functools import partial

from benchmarks.gpu_stages.regression import checked, fused_attention, inputs, ours
from benchmarks.gpu_stages.settings import Settings
from benchmarks.gpu_stages.timing import ceilings, forward_and_backward, milliseconds
from tessera.kernels import Gaussian
from tessera.ops.kernel_regression import Window


def cases(settings: Settings) -> dict[str, Callable[[], dict]]:
    """Lengths 2k to 64k by head widths; and windows that need no full triangle."""
    cases_by_name: dict[str, Callable[[], dict]] = {"ceilings": lambda: ceilings(settings)}
    for width in settings.pick((64, 128), (16,)):
        for length in settings.pick((2048, 4096, 8192, 16_384, 32_768, 65_536), (20,)):
            cases_by_name[f"past, {length} x {width}"] = partial(past, settings, length, width)
    for name, window in {"short-term": Window(span=256), "long-term": Window(64)}.items():
        cases_by_name[f"{name} window"] = partial(windowed, settings, window)
    return cases_by_name


def past(settings: Settings, length: int, width: int) -> dict:
    """Forward and backward; `ratio` > 1: faster than PyTorch's fused attention."""
    kernel, heads = Gaussian(), settings.pick(1024 // width, 1)
    batch = settings.pick(max(1, 16_384 // length), 1)
    small = inputs(settings, 1, 2, settings.pick(513, 17), width, settings.dtype)
    errors = {name: checked(kernel, name, small) for name in ("fused", "triton")}
    *leaves, above = inputs(settings, batch, heads, length, width, settings.dtype)
    runs = {
        "chosen": forward_and_backward(partial(ours, kernel), leaves, above),
        "triton": forward_and_backward(partial(ours, kernel, backend="triton"), leaves, above),
        "peer": forward_and_backward(fused_attention, leaves, above),
    }
    times = milliseconds(settings, runs)
    # Two products forward and five backward over half of the T x T scores.
    teraflops = 7 * batch * heads * length**2 * width / 1e12
    return {
        "batch": batch,
        "heads": heads,
        "milliseconds": times,
        "ratio": times["peer"] / times["chosen"],
        "triton_ratio": times["peer"] / times["triton"],
        "target": 0.9,
        "deviation": errors,
        "share_of_bf16_products": teraflops / times["chosen"] * 1e3 / ceilings(settings)["bf16_teraflops"],
    }


def windowed(settings: Settings, window: Window) -> dict:
    """Triton skips the tiles outside the window; PyTorch is given the mask."""
    kernel, length, width = Gaussian(), settings.pick(8192, 20), settings.pick(128, 16)
    window = settings.pick(window, Window(window.delay and 2, None if window.span is None else 6))
    small = inputs(settings, 1, 2, settings.pick(513, 17), width, settings.dtype)
    error = checked(kernel, "triton", small, window=window)
    *leaves, above = inputs(settings, settings.pick(2, 1), settings.pick(16, 1), length, width, settings.dtype)
    runs = {
        name: forward_and_backward(partial(ours, kernel, backend=name, window=window), leaves, above)
        for name in ("triton", "fused")
    }
    runs["causal"] = forward_and_backward(fused_attention, leaves, above)
    times = milliseconds(settings, runs)
    return {
        "milliseconds": times,
        "times_as_fast_as_masked": times["fused"] / times["triton"],
        "times_as_fast_as_causal": times["causal"] / times["triton"],
        "deviation": error,
    }
