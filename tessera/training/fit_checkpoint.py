"""The checkpoint of `fit`, one file: after a kill, the old one or the new one is there, complete."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tessera.base.files import write_atomically


@dataclass
class Fit:
    """What a training came to: steps done, mean loss of the `recent` ones, validation values, seconds."""

    steps: int = 0
    loss: float = math.nan
    best: float = math.inf
    best_step: int = 0
    checks: list[tuple[int, float]] | None = None
    seconds: float = 0.0
    recent: list[Tensor] = field(default_factory=list)

    def outcome(self) -> dict[str, Any]:
        """JSON-ready."""
        best = None if math.isinf(self.best) else self.best
        fields = {name: value for name, value in vars(self).items() if name != "recent"}
        return {**fields, "best": best, "checks": self.checks or [], "seconds": round(self.seconds, 1)}


def save(place: Path, model: nn.Module, optimizer: torch.optim.Optimizer, progress: Fit, best: dict | None) -> None:
    """Write model, best weights, optimizer, random state and progress to `place`.safetensors."""
    tensors = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"best/{name}": tensor for name, tensor in (best or {}).items()}
    for name, parameter in model.named_parameters():
        tensors |= {f"optimizer/{field}/{name}": value for field, value in optimizer.state.get(parameter, {}).items()}
    tensors |= _random_states(model)
    tensors["recent"] = torch.stack(progress.recent) if progress.recent else torch.empty(0)
    tensors["progress"] = torch.tensor([progress.steps, progress.best_step], dtype=torch.float64)
    tensors["values"] = torch.tensor([progress.loss, progress.best, progress.seconds], dtype=torch.float64)
    tensors["checks"] = torch.tensor(progress.checks or [], dtype=torch.float64).reshape(-1, 2)
    unshared = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place.with_suffix(".safetensors"), lambda path: save_file(unshared, path))


def load(place: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Fit, dict | None]:
    """Bring model, optimizer and random state back to what `save` wrote; a new `Fit` where there is nothing."""
    path = place.with_suffix(".safetensors")
    if not path.exists():
        return Fit(), None
    tensors = load_file(path)
    model.load_state_dict(_under(tensors, "model/"))
    torch.set_rng_state(tensors["random"])
    if "random/cuda" in tensors:
        torch.cuda.set_rng_state(tensors["random/cuda"], _device(model))
    parameters = dict(model.named_parameters())
    for key, tensor in _under(tensors, "optimizer/").items():
        field, name = key.split("/", 1)
        # AdamW counts its steps on the CPU; its averages lie beside the parameter.
        optimizer.state[parameters[name]][field] = tensor.to(parameters[name].device) if tensor.dim() else tensor
    steps, best_step = (int(value) for value in tensors["progress"])
    loss, best, seconds = tensors["values"].tolist()
    checks = [(int(step), value) for step, value in tensors["checks"].tolist()]
    recent = list(tensors["recent"].to(_device(model)))
    return Fit(steps, loss, best, best_step, checks, seconds, recent), _under(tensors, "best/") or None


def _random_states(model: nn.Module) -> dict[str, Tensor]:
    """Dropout and random delays draw from them."""
    states = {"random": torch.get_rng_state()}
    if _device(model).type == "cuda":
        states["random/cuda"] = torch.cuda.get_rng_state(_device(model))
    return states


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
