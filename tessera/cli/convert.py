"""Rebuild a published checkpoint as a model of this library.

The checkpoint is a .safetensors file, or a PyTorch file (.pt, .pth, .bin, .ckpt) that is read with weights_only: code
in it is never run. The result is a folder that from_pretrained, generate and eval read.
"""

import argparse
import json
import pickle
from pathlib import Path

# Where training scripts put the weights and the constructor's arguments in their checkpoint files.
WEIGHTS = ("model", "state_dict", "model_state_dict")
ARGUMENTS = ("model_args", "constructor")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of this verb."""
    parser.add_argument("checkpoint", type=Path, help="the published weights")
    parser.add_argument("output", type=Path, help="the folder to write; it must not exist or be empty")
    parser.add_argument(
        "--source",
        help="which published code, such as memory-mosaics-eft or nano-mosaics; recognised by the parameter names and "
        "the constructor's arguments where these tell",
    )
    parser.add_argument(
        "--arguments",
        type=Path,
        help="JSON file of the published constructor's arguments (not needed where the checkpoint holds model_args)",
    )
    parser.add_argument("--dtype", choices=("float32", "float64", "bfloat16"), default="float32")


def run(arguments: argparse.Namespace) -> int:
    """Read, rebuild, save."""
    import torch

    from tessera.errors import TesseraError
    from tessera.interop import from_reference, recognised_source

    if arguments.output.exists() and (not arguments.output.is_dir() or any(arguments.output.iterdir())):
        raise TesseraError(f"{arguments.output}: already exists and is not an empty folder. Choose another output.")
    weights, found = read_checkpoint(arguments.checkpoint)
    constructor = read_arguments(arguments.arguments) if arguments.arguments else found
    if constructor is None:
        raise TesseraError(f"{arguments.checkpoint}: it holds no model_args; give the constructor's with --arguments.")
    source = arguments.source or recognised_source(weights, constructor)
    model = from_reference(source, weights, constructor).to(getattr(torch, arguments.dtype))
    try:
        model.save_pretrained(arguments.output)
    except OSError as error:
        raise TesseraError(f"{arguments.output}: cannot be written: {error.strerror or error}") from None
    print(f"{arguments.output}: {type(model).__name__}, {sum(p.numel() for p in model.parameters()):,} parameters")
    return 0


def read_checkpoint(path: Path) -> tuple[dict, dict | None]:
    """The tensors by published name, and the constructor's arguments if the file holds them."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from tessera.errors import TesseraError

    if not path.is_file():
        raise TesseraError(f"{path}: no such file.")
    try:
        content = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise TesseraError(
            f"{path}: it holds Python objects other than tensors, which are never unpickled here. "
            "Save its state_dict() alone, as a .safetensors file or with torch.save."
        ) from None
    except (SafetensorError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise TesseraError(f"{path}: cannot be read as weights (truncated, or not such a file?): {error}") from None
    constructor = next((content[key] for key in ARGUMENTS if isinstance(content.get(key), dict)), None)
    weights = next((content[key] for key in WEIGHTS if isinstance(content.get(key), dict)), content)
    tensors = {name.removeprefix("param/"): tensor for name, tensor in weights.items() if torch.is_tensor(tensor)}
    if not tensors:
        raise TesseraError(f"{path}: it holds no tensors.")
    return tensors, constructor


def read_arguments(path: Path) -> dict:
    """The constructor's arguments from a JSON file, which may hold them under "constructor"."""
    from tessera.errors import TesseraError

    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise TesseraError(f"{path}: cannot be read as JSON: {error}") from None
    if not isinstance(content, dict):
        raise TesseraError(f"{path}: must hold an object of arguments; got {type(content).__name__}.")
    if "constructor" not in content:
        return content
    return {**content["constructor"], **{key: content[key] for key in ("base_model",) if key in content}}
