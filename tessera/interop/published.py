"""Reading a published state dict name by name, so that nothing is missed and nothing is left over."""

import difflib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from tessera.base.errors import TesseraError, did_you_mean

# Prefixes that torch.compile and DistributedDataParallel put before every name.
_WRAPPERS = ("_orig_mod.", "module.")
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

    def finish(self) -> None:
        """Raise if a tensor was not taken: the checkpoint holds something this model has no place for."""
        if self._tensors:
            names = ", ".join(map(shown, sorted(self._tensors)[:5]))
            raise TesseraError(f"{self.source}: unexpected tensors: {names}.")


def without_wrappers(name: str) -> str:
    """`name` as the module itself calls it."""
    for wrapper in _WRAPPERS:
        name = name.removeprefix(wrapper)
    return name


def renamed(source: str, tensors: dict[str, Tensor], rename: Callable[[str], str]) -> dict[str, Tensor]:
    """The same tensors by other names. Raises `TesseraError` where two get one name."""
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if (new := rename(name)) in result:
            raise TesseraError(f"{source}: the checkpoint holds tensor {shown(new)} twice.")
        result[new] = tensor
    return result


def shown(value: object) -> str:
    """A name or value out of a file, which may hold line ends and go on for ever."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _no_weights(tensor: Tensor) -> str | None:
    """Why a tensor cannot be weights, in a few words; None where it can."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        return "it is sparse" if tensor.layout != torch.strided else "it is quantised"
    if tensor.dtype not in WEIGHT_TYPES:
        return f"it is of type {str(tensor.dtype).removeprefix('torch.')}"
    return None if bool(tensor.isfinite().all()) else "it has NaN or infinity"


def require_shapes(source: str, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Raise `TesseraError` unless these tensors have the shapes of the parameters of `model` of these names."""
    wrong = [
        f"{name} must have shape {tuple(own.shape)}; got {tuple(tensors[name].shape)}"
        for name, own in model.named_parameters()
        if name in tensors and tensors[name].shape != own.shape
    ]
    if wrong:
        raise TesseraError(f"{source}: {'; '.join(wrong[:3])}. Do the arguments belong to this checkpoint?")


def filled(source: str, model_class: type[Model], config: PreTrainedConfig, parameters: dict[str, Tensor]) -> Model:
    """A model of `config` with copies of these parameters (our names), in eval mode."""
    with torch.device("meta"):
        model = model_class(config)
    require_shapes(source, model, parameters)
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
