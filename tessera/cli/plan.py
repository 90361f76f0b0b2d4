"""What a recipe needs on given devices: memory, FLOPs, speed, days, disk; and what does not fit.

Memory is counted on one step of the recipe's own model with tensors without values, so any machine plans for any other
and nothing is allocated: 64 GPUs of 80 GB are planned for on a laptop. It takes seconds to a minute.
For example: tessera plan mosaic-v2-large-4k --devices 64 --device-memory 80GB training.micro_batch_size=2
"""

import argparse
import json
from typing import TYPE_CHECKING

from tessera.base.errors import TesseraError
from tessera.cli.arguments import integer, memory_size, positive_float, probability, require_recipe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tessera.tools.plan import Plan

DEVICE_TYPES = {"gpu": "cuda", "cpu": "cpu"}
MOST_DEVICES = 1_000_000
GB = 1e9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera plan`."""
    parser.add_argument("recipe", help="recipe file, or the name of a shipped recipe")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="changes to the recipe, with dotted keys"
    )
    parser.add_argument(
        "--devices", type=integer(1, MOST_DEVICES), default=1, help="how many, one process each (default: 1)"
    )
    parser.add_argument(
        "--device-memory",
        type=memory_size,
        metavar="SIZE",
        help="of one device, such as 80GB (1 GB = 10^9 bytes) or 80GiB; says what does not fit",
    )
    parser.add_argument(
        "--utilization",
        type=probability,
        default=0.4,
        help="of the devices' peak FLOPs per second, the share that the model's own FLOPs reach (default: 0.4)",
    )
    parser.add_argument(
        "--peak-flops",
        type=positive_float,
        help="FLOPs per second of one device, such as 312e12 (default: an H100's, 989e12 in bfloat16)",
    )
    parser.add_argument(
        "--device-type", choices=DEVICE_TYPES, default="gpu", help="whose implementations run (default: gpu)"
    )
    parser.add_argument("--json", action="store_true", help="print as JSON, memory in bytes per device")


def run(arguments: argparse.Namespace) -> int:
    """Count and print."""
    if arguments.device_type == "cpu" and arguments.peak_flops is None:
        raise TesseraError(
            "plan: --peak-flops must be given with --device-type cpu, since processors differ by a factor of 100; "
            "such as --peak-flops 0.2e12."
        )
    require_recipe(arguments.recipe)

    from tessera.recipes.recipe import read_recipe
    from tessera.tools.plan import plan

    planned = plan(
        read_recipe(arguments.recipe, arguments.overrides),
        arguments.devices,
        arguments.device_memory,
        utilization=arguments.utilization,
        peak_flops=arguments.peak_flops,
        device_type=DEVICE_TYPES[arguments.device_type],
    )
    print(json.dumps(planned.to_dict(), indent=1) if arguments.json else "\n".join(_lines(planned)))
    return 0


def _lines(plan: "Plan") -> "Iterator[str]":
    memory, many = plan.memory, plan.devices > 1
    yield f"{plan.recipe}: {plan.model_type}, {plan.parameters:,} parameters"
    yield f"memory of each of {plan.devices:,} devices" if many else "memory of one device"
    weights = (
        "float32, spread over the devices" if plan.shard else "float32, all on every device" if many else "float32"
    )
    yield _row("weights", memory.weights, weights)
    yield _row("gradients", memory.gradients, "kept over the passes of a step" if plan.accumulation > 1 else "")
    yield _row("optimizer state", memory.optimizer, "AdamW, float32")
    if memory.buffers:
        yield _row("buffers", memory.buffers, "to send gradients in")
    yield _row("activations", memory.activations, _pass(plan))
    if memory.gradients_at_peak < memory.gradients:
        yield _row("", memory.gradients_at_peak, "of the gradients are there at the time of the most activations")
    yield _row("peak", memory.peak, f"forward and backward; the optimizer's step {memory.optimizer_step / GB:,.2f} GB")
    if plan.device_memory is not None:
        yield from _fit(plan, plan.device_memory)
    yield f"FLOPs per step     {plan.flops_per_step:12.4g}    {plan.tokens_per_step:,} tokens, forward and backward"
    speed = f"{plan.utilization:.0%} of {plan.devices:,} x {plan.peak_flops / 1e12:,.0f} TFLOP/s"
    yield f"tokens per second  {plan.tokens_per_second:12,.0f}    at {speed}"
    tokens = plan.steps * plan.tokens_per_step
    days = f"{plan.days:,.1f}" if plan.days >= 1 else f"{plan.days:.3g}"
    yield f"days               {days:>12}    {plan.steps:,} steps, {tokens:,} tokens, and the validations"
    kept = f"weights and optimizer state; {plan.keep_checkpoints} are kept, and one more while it is written"
    yield _row("checkpoint", plan.checkpoint_bytes, kept)
    yield _row("model", plan.model_bytes, "its weights, when the run ends")
    yield from _assumptions(plan)


def _row(name: str, size: int, note: str) -> str:
    return f"{name:<19}{size / GB:12,.2f} GB {note}".rstrip()


def _pass(plan: "Plan") -> str:
    sequences = f"{plan.micro_batch} sequence{'s' if plan.micro_batch > 1 else ''} of {plan.context:,} tokens at once"
    times = f", {plan.accumulation:,} passes per step" if plan.accumulation > 1 else ""
    return sequences + times + (", computed again in the backward pass" if plan.gradient_checkpointing else "")


def _fit(plan: "Plan", available: int) -> "Iterator[str]":
    memory = plan.memory
    if plan.fits:
        yield _row("device memory", available, f"fits; {(available - memory.peak) / GB:,.2f} GB are left")
        return
    yield _row("device memory", available, f"does not fit: {(memory.peak - available) / GB:,.2f} GB are missing")
    held = memory.weights + memory.gradients + memory.optimizer + memory.buffers
    if held > available:
        yield f"weights, gradients and optimizer state alone take {held / GB:,.2f} GB"
    for change in plan.changes:
        result = "fits" if change.fits else "does not fit"
        yield f"with {' '.join(change.overrides)}: {change.peak / GB:,.2f} GB, {result}"
    if not any(change.fits for change in plan.changes):
        help_of = "more devices" if plan.devices == 1 or plan.shard else "more devices with training.shard=true"
        yield f"no setting of the recipe makes it fit: it needs {help_of}, a shorter data.context or a smaller model"


def _assumptions(plan: "Plan") -> "Iterator[str]":
    ways = "Triton kernels and PyTorch's fused attention" if plan.device_type == "cuda" else "PyTorch on a CPU"
    precision = "bfloat16 by autocast" if plan.precision == "bf16" else "float32"
    yield f"counted: {ways}, {precision}, nothing compiled, AdamW as PyTorch runs it, the first device's shard"
    yield "not counted: the driver's own memory (about 1 GB on a GPU), fragmentation, and validation"
