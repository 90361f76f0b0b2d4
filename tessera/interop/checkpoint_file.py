"""Files of published weights, read without running code in them."""

import json
import pickle
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from tessera.base.dataclass_io import shown
from tessera.base.errors import TesseraError, expect, first_line
from tessera.base.files import expect_new_folder, expect_plain_file, new_folder, writing
from tessera.interop import from_reference, recognised_source

# Where training scripts put the weights and the constructor's arguments in their checkpoint files.
WEIGHTS = ("model", "state_dict", "model_state_dict")
ARGUMENTS = ("model_args", "constructor")


def convert_checkpoint(
    checkpoint: Path, output: Path, *, source: str | None = None, arguments: Path | None = None, dtype: str = "float32"
) -> PreTrainedModel:
    """Rebuild the published weights in file `checkpoint` and save them in folder `output`; returns the model.

    Args:
        source: a name of `REFERENCES`; None: recognised. arguments: JSON file of the published constructor's arguments,
            where the checkpoint does not hold them. dtype: of the saved weights.
    Raises:
        TesseraError: an unreadable file, an output that is in use, or what `from_reference` refuses.
    """
    expect_new_folder(output, "convert", "OUTPUT")
    weights, constructor = read_checkpoint(checkpoint)
    if arguments is not None:
        constructor = read_arguments(arguments)
    if constructor is None:
        raise TesseraError(f"{checkpoint}: it holds no model_args; give the constructor's with --arguments.")
    model = from_reference(source or recognised_source(weights, constructor), weights, constructor)
    model = model.to(getattr(torch, dtype))
    large = next((name for name, weight in model.named_parameters() if not bool(weight.isfinite().all())), None)
    expect(large is None, "convert", f"tensor {large!r}", f"fit {dtype}", "numbers that become infinite")
    with writing(output), new_folder(output) as folder:
        model.save_pretrained(folder)
    return model


def read_checkpoint(path: Path) -> tuple[dict, dict | None]:
    """The tensors by published name, and the constructor's arguments if the file holds them."""
    if not path.is_file():
        raise TesseraError(f"{path}: no such file.")
    try:
        content = _content(path)
    except pickle.UnpicklingError:
        raise TesseraError(
            f"{path}: it is no file of weights, or holds Python objects, which are never unpickled here. "
            "Save its state_dict() alone, as a .safetensors file or with torch.save."
        ) from None
    # Of a file that is no pickle, PyTorch's reader may take any byte for an instruction: KeyError, IndexError, ...
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise TesseraError(f"{path}: cannot be read as weights (truncated, or not such a file?): {reason}") from None
    if not isinstance(content, dict):
        raise TesseraError(f"{path}: must hold tensors by name; got {type(content).__name__}.")
    constructor = next((content[key] for key in ARGUMENTS if isinstance(content.get(key), dict)), None)
    weights = next((content[key] for key in WEIGHTS if isinstance(content.get(key), dict)), content)
    tensors = {name: tensor for name, tensor in weights.items() if torch.is_tensor(tensor)}
    unnamed = next((name for name in tensors if not isinstance(name, str)), None)
    if unnamed is not None:
        raise TesseraError(f"{path}: must hold tensors by name; got the name {shown(unnamed)}.")
    plain = {name.removeprefix("param/"): tensor for name, tensor in tensors.items()}
    if not tensors:
        raise TesseraError(f"{path}: it holds no tensors.")
    expect(len(plain) == len(tensors), str(path), "names", "be different", 'the same with and without "param/"')
    return plain, constructor


def _content(path: Path) -> Any:
    """What a file of weights holds; the index of several files: all of their tensors."""
    if path.name.endswith(".index.json"):
        files = sorted({Path(name).name for name in json.loads(path.read_text())["weight_map"].values()})
        return {name: tensor for file in files for name, tensor in _content(path.with_name(file)).items()}
    return load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)


def read_arguments(path: Path) -> dict:
    """The constructor's arguments from a JSON file, which may hold them under "constructor"."""
    expect_plain_file(path, "convert", "--arguments")
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise TesseraError(f"{path}: cannot be read as JSON ({first_line(error)}).") from None
    if not isinstance(content, dict):
        raise TesseraError(f"{path}: must hold an object of arguments; got {type(content).__name__}.")
    if "constructor" not in content:
        return content
    if not isinstance(content["constructor"], dict):
        kind = type(content["constructor"]).__name__
        raise TesseraError(f'{path}: "constructor" must be an object of arguments; got {kind}.')
    return {**content["constructor"], **{key: content[key] for key in ("base_model",) if key in content}}
