"""Which published code a checkpoint is from, and its state dict read name by name: nothing is missed or left over."""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from tessera.base.dataclass_io import shown
from tessera.base.errors import TesseraError, did_you_mean
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


def check_layout(source: str, names: Iterable[str]) -> None:
    """Raise `TesseraError` if the parameter names are those of other sources than `source`."""
    sources = sources_of(names)
    if sources and source not in sources:
        raise TesseraError(f"{source}: the parameter names are those of {_choice(sources)}.")


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
