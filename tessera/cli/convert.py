"""Rebuild a published checkpoint as a model of this library, or make one model of a checkpoint in parts.

The checkpoint is a .safetensors file, or a PyTorch file (.pt, .pth, .bin, .ckpt) that is read with weights_only: code
in it is never run; or the index (.index.json) of several such files. Of a run that was trained with training.shard (or
one of its checkpoints), the parts that the processes wrote are merged. The result is a folder that from_pretrained,
generate and eval read.
"""

import argparse
from pathlib import Path

from tessera.base.errors import expect


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this verb."""
    add = parser.add_argument
    add("checkpoint", type=Path, help="file of the published weights, or folder of a run or checkpoint")
    add("output", type=Path, help="write the model into this folder, which must be empty or new")
    meaning = "the published code that made it, such as nano-mosaics (default: the one whose parameter names these are)"
    add("--source", help=meaning)
    meaning = "JSON file with the arguments of the published model class, where the checkpoint does not hold them"
    add("--arguments", type=Path, help=meaning)
    meaning = "number format of the weights (default: float32)"
    add("--dtype", choices=("float32", "float64", "bfloat16"), default="float32", help=meaning)


def run(arguments: argparse.Namespace) -> int:
    """Convert, and say what it became."""
    if arguments.checkpoint.is_dir():
        return _merge(arguments)
    from tessera.interop.published import convert_checkpoint
    from tessera.models.sizes import num_parameters

    options = {name: getattr(arguments, name) for name in ("source", "arguments", "dtype")}
    model = convert_checkpoint(arguments.checkpoint, arguments.output, **options)
    print(f"{arguments.output}: {type(model).__name__}, {num_parameters(model):,} parameters")
    return 0


def _merge(arguments: argparse.Namespace) -> int:
    from tessera.training.checkpoint_tensors import merged_model

    for name in ("source", "arguments"):
        expect(getattr(arguments, name) is None, "convert", f"--{name}", "be left out for a folder", "one")
    checkpoint, count = merged_model(arguments.checkpoint, arguments.output, arguments.dtype)
    print(f"{arguments.output}: {checkpoint.name}, {count} {'file' if count == 1 else 'files'} of weights")
    return 0
