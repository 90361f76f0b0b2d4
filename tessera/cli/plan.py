"""Plan a training: the memory, FLOPs, days and disk that a recipe needs on given devices, and what does not fit.

Memory is counted on one step of the recipe's own model with tensors without values, so any machine plans for any other
and nothing is allocated: 64 GPUs of 80 GB are planned for on a laptop. It takes seconds to a minute.
For example: tessera plan mosaic-v2-large-4k --devices 64 --device-memory 80GB training.micro_batch_size=2
"""

import argparse
import json
from collections.abc import Iterator
from typing import Any

from tessera.base.errors import TesseraError
from tessera.cli.arguments import add_recipe, integer, memory_size, positive_float, probability
from tessera.recipes.files import find_recipe

DEVICE_TYPES = {"gpu": "cuda", "cpu": "cpu"}
MOST_DEVICES = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera plan`."""
    add_recipe(parser)
    count, add = integer(1, MOST_DEVICES), parser.add_argument
    size = "memory of one device, such as 80GB (10^9 bytes each) or 80GiB: then the answer says what does not fit"
    share = "share of the devices' peak speed that the training is expected to reach, for the days (default: 0.4)"
    flops = "peak speed of one device in FLOPs per second, such as 312e12 (default: 989e12, an H100 in bfloat16)"
    add("--devices", type=count, default=1, help="number of devices; each runs one process (default: 1)")
    add("--device-memory", type=memory_size, metavar="SIZE", help=size)
    add("--utilization", type=probability, default=0.4, help=share)
    add("--peak-flops", type=positive_float, help=flops)
    meaning = "plan for GPUs or for CPUs, whose programs need other memory (default: gpu)"
    add("--device-type", choices=DEVICE_TYPES, default="gpu", help=meaning)
    add("--json", action="store_true", help="print JSON, with memory in bytes per device")


def run(arguments: argparse.Namespace) -> int:
    """Count and print."""
    if arguments.device_type == "cpu" and arguments.peak_flops is None:
        raise TesseraError(
            "plan: --peak-flops must be given with --device-type cpu, since processors differ by a factor of 100; "
            "such as --peak-flops 0.2e12."
        )
    find_recipe(arguments.recipe)  # before the seconds that importing models takes
    from tessera.recipes.recipe import read_recipe
    from tessera.tools.plan import plan

    recipe = read_recipe(arguments.recipe, arguments.overrides)
    speed = {name: getattr(arguments, name) for name in ("utilization", "peak_flops")}
    device_type = DEVICE_TYPES[arguments.device_type]
    planned = plan(recipe, arguments.devices, arguments.device_memory, device_type=device_type, **speed)
    print(json.dumps(planned, indent=1) if arguments.json else "\n".join(_lines(planned, planned["memory"])))
    return 0


def _lines(plan: dict[str, Any], memory: dict[str, int]) -> Iterator[str]:
    passes = f", {plan['accumulation']:,} passes per step" if plan["accumulation"] > 1 else ""
    again = ", computed again in the backward pass" if plan["gradient_checkpointing"] else ""
    spread = ", spread over the devices" if plan["shard"] else ", all on every device" if plan["devices"] > 1 else ""
    yield f"{plan['recipe']}: {plan['model_type']}, {plan['parameters']:,} parameters"
    yield f"memory of each of {plan['devices']:,} devices" if plan["devices"] > 1 else "memory of one device"
    yield _row("weights", memory["weights"], f"float32{spread}")
    yield _row("gradients", memory["gradients"], "kept over the passes of a step" if passes else "")
    yield _row("optimizer state", memory["optimizer"], "AdamW, float32")
    if memory["buffers"]:
        yield _row("buffers", memory["buffers"], "to send gradients in")
    at_once = f"{plan['micro_batch']} x {plan['context']:,} tokens at once"
    yield _row("activations", memory["activations"], f"{at_once}{passes}{again}")
    if memory["gradients_at_peak"] < memory["gradients"]:
        yield _row("", memory["gradients_at_peak"], "of the gradients are there at the time of the most activations")
    step = f"forward and backward; the optimizer's step {memory['optimizer_step'] / 1e9:,.2f} GB"
    yield _row("peak", memory["peak"], step)
    if plan["device_memory"] is not None:
        yield from _fit(plan, memory, plan["device_memory"])
    tokens = f"{plan['tokens_per_step']:,} tokens, forward and backward"
    yield f"FLOPs per step     {plan['flops_per_step']:12.4g}    {tokens}"
    speed = f"{plan['utilization']:.0%} of {plan['devices']:,} x {plan['peak_flops'] / 1e12:,.0f} TFLOP/s"
    yield f"tokens per second  {plan['tokens_per_second']:12,.0f}    at {speed}"
    days = f"{plan['days']:,.1f}" if plan["days"] >= 1 else f"{plan['days']:.3g}"
    tokens = plan["steps"] * plan["tokens_per_step"]
    yield f"days               {days:>12}    {plan['steps']:,} steps, {tokens:,} tokens, and the validations"
    kept = f"weights and optimizer state; {plan['keep_checkpoints']} are kept, and one more while it is written"
    yield _row("checkpoint", plan["checkpoint_bytes"], kept)
    yield _row("model", plan["model_bytes"], "its weights, when the run ends")
    ways = "Triton kernels and PyTorch's fused attention" if plan["device_type"] == "cuda" else "PyTorch on a CPU"
    precision = "bfloat16 by autocast" if plan["precision"] == "bf16" else "float32"
    yield f"counted: {ways}, {precision}, nothing compiled, AdamW as PyTorch runs it, the first device's shard"
    yield "not counted: the driver's own memory (about 1 GB on a GPU), fragmentation, and validation"


def _row(name: str, size: int, note: str) -> str:
    return f"{name:<19}{size / 1e9:12,.2f} GB {note}".rstrip()


def _fit(plan: dict[str, Any], memory: dict[str, int], available: int) -> Iterator[str]:
    left = available - memory["peak"]
    verdict = "fits; {:,.2f} GB are left" if plan["fits"] else "does not fit: {:,.2f} GB are missing"
    yield _row("device memory", available, verdict.format(abs(left) / 1e9))
    held = sum(memory[name] for name in ("weights", "gradients", "optimizer", "buffers"))
    if held > available:
        yield f"weights, gradients and optimizer state alone take {held / 1e9:,.2f} GB"
    for change in plan["changes"]:
        result = "fits" if change["fits"] else "does not fit"
        yield f"with {' '.join(change['overrides'])}: {change['peak'] / 1e9:,.2f} GB, {result}"
    if not plan["fits"] and not any(change["fits"] for change in plan["changes"]):
        help_of = "more devices" if plan["devices"] == 1 or plan["shard"] else "more devices with training.shard=true"
        yield f"no setting of the recipe makes it fit: it needs {help_of}, a shorter data.context or a smaller model"
