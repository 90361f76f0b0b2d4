"""Published checkpoints: which code made one, its file, read without running code in it, and its state dict, read name
by name: nothing is missed or left over.
"""

import difflib
import json
import pickle
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from tessera.base.arguments import explains_mistakes
from tessera.base.dataclass_io import shown
from tessera.base.errors import TesseraError, did_you_mean, expect, first_line
from tessera.base.files import expect_new_folder, expect_plain_file, new_folder, writing
from tessera.base.registry import Registry

# Prefixes that torch.compile and DistributedDataParallel put before every name, in any order.
_WRAPPERS = re.compile(r"(_orig_mod\.|module\.)*")
WEIGHT_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
Model = TypeVar("Model", bound=PreTrainedModel)


class Published:
    """The tensors of a published checkpoint; `take` hands each out once, `finish` refuses leftovers."""

    def __init__(self, source: str, tensors: dict[str, Tensor], constant: Callable[[str, Tensor], bool] | None = None):
        self.source = source
        # Masks and coefficient tables that the published modules keep as buffers carry no information.
        self._tensors = {
            name: tensor
            for name, tensor in renamed(source, tensors, without_wrappers).items()
            if constant is None or not constant(name, tensor)
        }

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor called `name`; its shape is checked when given."""
        if name not in self._tensors:
            near = ", ".join(map(shown, difflib.get_close_matches(name, self._tensors, n=3))) or "none like it"
            raise TesseraError(f"{self.source}: tensor {name!r} is missing from the checkpoint; it holds {near}.")
        tensor = self._tensors.pop(name)
        reason = _no_weights(tensor)
        if reason is not None:
            raise TesseraError(
                f"{self.source}: tensor {name!r} must hold weights as plain floating-point numbers; {reason}."
            )
        if shape and tuple(tensor.shape) != shape:
            raise TesseraError(f"{self.source}: tensor {name!r} must have shape {shape}; got {tuple(tensor.shape)}.")
        return tensor

    def affine(self, theirs: str, ours: str, bias: bool) -> dict[str, Tensor]:
        """The weight, and with `bias` the bias, of a linear layer or a norm, by our names."""
        return {f"{ours}.{part}": self.take(f"{theirs}.{part}") for part in ["weight", "bias"][: 1 + bias]}

    def finish(self) -> None:
        """Raise if a tensor was not taken: the checkpoint holds something this model has no place for."""
        if self._tensors:
            names = ", ".join(map(shown, sorted(self._tensors)[:5]))
            raise TesseraError(f"{self.source}: unexpected tensors: {names}.")


def without_wrappers(name: str) -> str:
    """`name` as the module itself calls it."""
    return _WRAPPERS.sub("", name, count=1)


def renamed(source: str, tensors: dict[str, Tensor], rename: Callable[[str], str]) -> dict[str, Tensor]:
    """The same tensors by other names. Raises `TesseraError` where two get one name."""
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if (new := rename(name)) in result:
            raise TesseraError(f"{source}: the checkpoint holds tensor {shown(new)} twice.")
        result[new] = tensor
    return result


def _no_weights(tensor: Tensor) -> str | None:
    """Why a tensor cannot be weights, in a few words; None where it can."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        return "it is sparse" if tensor.layout != torch.strided else "it is quantised"
    if tensor.dtype not in WEIGHT_TYPES:
        return f"it is of type {str(tensor.dtype).removeprefix('torch.')}"
    return None if bool(tensor.isfinite().all()) else "it has NaN or infinity"


def expect_shapes(source: str, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Raise `TesseraError` unless these tensors have the shapes of the parameters of `model` of these names."""
    wrong = [
        f"{name} must have shape {tuple(own.shape)}; got {tuple(tensors[name].shape)}"
        for name, own in model.named_parameters()
        if name in tensors and tensors[name].shape != own.shape
    ]
    if wrong:
        raise TesseraError(f"{source}: {'; '.join(wrong[:3])}. Do the arguments belong to this checkpoint?")


def expect_one(source: str, name: str, tensor: Tensor, other: str, same: Tensor) -> None:
    """Raise `TesseraError` unless two tensors that are one parameter in the published code are equal."""
    if not torch.equal(tensor, same):
        advice = "Is the file damaged, or do the arguments (weight_tying) belong to another?"
        raise TesseraError(f"{source}: {name} and {other} must be one parameter; they differ. {advice}")


def filled(source: str, model_class: type[Model], config: PreTrainedConfig, parameters: dict[str, Tensor]) -> Model:
    """A model of `config` with copies of these parameters (our names), in eval mode."""
    with torch.device("meta"):
        model = model_class(config)
    expect_shapes(source, model, parameters)
    # In order: transformers cannot save a tied matrix whose rows do not follow one another.
    copies = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in parameters.items()}
    model.load_state_dict(copies, strict=False, assign=True)
    model.tie_weights()
    return model.eval()


def check_arguments(source: str, arguments: dict, known: Mapping[str, object]) -> dict[str, Any]:
    """`known` (name -> default) updated with `arguments`; an unknown name is an error."""
    for name in arguments:
        if name not in known:
            raise TesseraError(f"{source}: unknown argument {shown(name)}. {did_you_mean(name, known)}")
    return {**known, **arguments}


def refuse(source: str, name: str, allowed: str, value: object) -> TesseraError:
    """The error for an argument that no model of this library expresses."""
    return TesseraError(f"{source}: {name} must be {allowed} to be expressed as a Tessera model; got {shown(value)}.")


def precise(tensor: Tensor) -> Tensor:
    """In float64. Scalars that pass through a function on import are kept so: cast the model, and they stay exact."""
    return tensor.to(torch.float64)


# Published checkpoint formats that the library can rebuild.
REFERENCES: Registry[Callable[[dict[str, Tensor], dict], PreTrainedModel]] = Registry("reference source")

# What some parameter's name ends with, and the sources whose checkpoints have it.
LAYOUTS = {
    ".leaky_average.linear.weight": ("memory-mosaics-eft", "sparse-kernel-regression-eft"),
    ".k_featurizer.conv.weight": ("memory-mosaics", "sparse-kernel-regression"),
    "mosaic.wte.weight": ("nano-mosaics",),
    ".W_mq.weight": ("armt",),
}


def sources_of(names: Iterable[str]) -> tuple[str, ...]:
    """The sources whose checkpoints have such parameter names; empty: none that names tell apart."""
    names = tuple(names)
    known = (sources for ending, sources in LAYOUTS.items() if any(name.endswith(ending) for name in names))
    return next(known, ())


def recognised_source(names: Iterable[str], arguments: dict | None) -> str:
    """The one source that parameter names and constructor's arguments tell; an error that names the choice if several.

    Of the sources that share their names, those of the sparse-kernel code have the argument `method`.
    """
    sources = sources_of(names)
    if not sources:
        raise TesseraError("the parameter names are those of no published code known here. Name the source.")
    if len(sources) > 1 and arguments is not None:
        sources = tuple(name for name in sources if name.startswith("sparse") == ("method" in arguments))
    if len(sources) > 1:
        raise TesseraError(f"the parameter names are those of {_choice(sources)}. Name the source.")
    return sources[0]


def _choice(sources: tuple[str, ...]) -> str:
    if len(sources) == 1:
        return repr(sources[0])
    plain, sparse = sources
    return f"{plain!r} and of {sparse!r} (whose constructor has a `method`)"


@explains_mistakes
def from_reference(source: str, state_dict: dict[str, Tensor], arguments: dict) -> PreTrainedModel:
    """Rebuild a checkpoint of published code as one of our models, in eval mode.

    Args:
        source: which published code: a name of `REFERENCES`.
        state_dict: the published module's own parameter names and tensors.
        arguments: the published constructor's arguments by name; those left out take the published defaults. Of the
            Memory Mosaics sources also a training script's `model_args`: what the constructor does not take is ignored.
    Returns:
        A model that takes `input_ids` (B, T) and returns `.logits`. Parameters keep the dtype of the checkpoint, except
        for a few per-head scalars that are functions of published ones and come in float64: `model.double()` is exact.
    Raises:
        TesseraError: an unknown source or argument, a missing, misshapen or unexpected tensor, or a published model
            that cannot be expressed (the message says why).
    """
    build, sources = REFERENCES[source], sources_of(state_dict)
    if sources and source not in sources:
        raise TesseraError(f"{source}: the parameter names are those of {_choice(sources)}.")
    try:
        return build(dict(state_dict), dict(arguments))
    except TesseraError:
        raise
    except Exception as error:  # whatever tensors of another shape and arguments of another kind bring up
        raise TesseraError(
            f"{source}: the tensors do not have the shapes, or the arguments not the values, of a published model "
            f"({type(error).__name__}: {first_line(error)[:200]})."
        ) from error


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
    Raises `TesseraError`: an unreadable file, an output that is in use, or what `from_reference` refuses.
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
