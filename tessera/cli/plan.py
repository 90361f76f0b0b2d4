"""Plan a training: the memory, FLOPs and days that a recipe needs on given GPUs, and what does not fit.

Memory is counted on one step of the recipe's own model with tensors without values, so any machine plans for any other
and nothing is allocated: 64 GPUs of 80 GB are planned for on a laptop. It takes seconds; ten billion parameters take
a minute or two.
For example: tessera plan mosaic-v2-large-4k --devices 64 --device-memory 80GB training.micro_batch_size=2
"""

import argparse
import json

from tessera.cli.options import add_recipe, integer, memory_size, positive_float, probability
from tessera.recipes.recipe_files import find_recipe


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `tessera plan`."""
    add_recipe(parser)
    add = parser.add_argument
    size = "memory of one device, such as 80GB (10^9 bytes each) or 80GiB: then the answer says what does not fit"
    share = "share of the devices' peak speed that the training is expected to reach, for the days (default: 0.4)"
    flops = "peak speed of one device in FLOPs per second, such as 312e12 (default: 989e12, an H100 in bfloat16)"
    add("--devices", type=integer(1, 1_000_000), default=1, help="number of GPUs; each runs one process (default: 1)")
    add("--device-memory", type=memory_size, metavar="SIZE", help=size)
    add("--utilization", type=probability, default=0.4, help=share)
    add("--peak-flops", type=positive_float, help=flops)
    add("--json", action="store_true", help="print JSON, with memory in bytes per device")


def run(arguments: argparse.Namespace) -> int:
    """Count and print."""
    find_recipe(arguments.recipe)  # before the seconds that importing models takes
    from tessera.recipes.recipe import read_recipe
    from tessera.tools.plan import lines, plan

    speed = {name: getattr(arguments, name) for name in ("utilization", "peak_flops")}
    recipe = read_recipe(arguments.recipe, arguments.overrides)
    planned = plan(recipe, arguments.devices, arguments.device_memory, **speed)
    print(json.dumps(planned, indent=1) if arguments.json else "\n".join(lines(planned)))
    return 0
