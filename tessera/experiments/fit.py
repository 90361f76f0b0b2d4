"""Train a small model on batches that are a function of the step; stop and go on without a trace."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tessera.errors import TesseraError
from tessera.experiments.experiment import Context
from tessera.experiments.folders import write_atomically


@dataclass(frozen=True)
class FitOptions:
    """AdamW with warm-up and decay.

    Attributes:
        steps, learning_rate, min_learning_rate, warmup: the rate rises over `warmup` of the steps (a share) to its peak
            and falls along `decay` ("cosine", "linear", "constant") to the minimum.
        weight_decay: on matrices alone. betas: of AdamW. clip_norm, clip_value: of gradients; None is no clipping.
        scalar_scale: factor of the rate for the per-head scalars that a model names in `scalar_parameter_names()`.
        check_every: steps between validations. patience: stop after so many checks without a better one; None never.
        checkpoint_seconds: at least so long between checkpoints.
    """

    steps: int
    learning_rate: float
    min_learning_rate: float = 0.0
    warmup: float = 0.1
    decay: str = "cosine"
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    clip_norm: float | None = None
    clip_value: float | None = None
    scalar_scale: float = 1.0
    check_every: int = 0
    patience: int | None = None
    checkpoint_seconds: float = 60.0


@dataclass
class Fit:
    """What a training came to: steps done, training loss of the last ones, validation values, seconds."""

    steps: int = 0
    loss: float = math.nan
    best: float = math.inf
    best_step: int = 0
    checks: list[tuple[int, float]] | None = None
    seconds: float = 0.0

    def outcome(self) -> dict[str, Any]:
        """JSON-ready."""
        best = None if math.isinf(self.best) else self.best
        return {**vars(self), "best": best, "checks": self.checks or [], "seconds": round(self.seconds, 1)}


def fit(
    model: nn.Module,
    loss_at: Callable[[int], Tensor],
    options: FitOptions,
    context: Context,
    *,
    validate: Callable[[], float] | None = None,
    name: str = "training",
    target: float = -math.inf,
) -> Fit:
    """Train `model` in place on `loss_at(step)`; with `validate` (lower is better) the best weights win.

    `loss_at` and `validate` must depend on the step and the model alone: a killed run goes on from
    `context.folder / name` and ends with the same weights. It ends early once a validation reaches `target`.

    Raises:
        TesseraError: the loss is not finite.
    """
    place = context.folder / name
    optimizer = torch.optim.AdamW(_groups(model, options), lr=options.learning_rate, betas=options.betas)
    progress, best = _load(place, model, optimizer)
    model.train()
    saved = began = time.perf_counter()
    before, running = progress.seconds, []
    while progress.steps < options.steps and not _over(progress, options, target):
        _set_rate(optimizer, options, progress.steps)
        loss = loss_at(progress.steps)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        _clip(model, options)
        optimizer.step()
        progress.steps += 1
        running = [*running[-49:], loss.detach()]
        now = time.perf_counter()
        progress.seconds = before + now - began
        last = progress.steps == options.steps
        check = validate is not None and (last or (options.check_every and progress.steps % options.check_every == 0))
        if check or last or progress.steps % 20 == 0:
            progress.loss = _finite(torch.stack(running).mean().item(), name, progress.steps)
            context.report(progress.steps / options.steps, f"{name} loss {progress.loss:.3f}")
        if check:
            best = _check(model, validate, progress, best)
        if last or now - saved > options.checkpoint_seconds:
            _save(place, model, optimizer, progress, best)
            saved = time.perf_counter()
    if progress.steps < options.steps:
        _save(place, model, optimizer, progress, best)
    if best is not None:
        model.load_state_dict(best)
    model.eval()
    return progress


def _over(progress: Fit, options: FitOptions, target: float) -> bool:
    if progress.best <= target:
        return True
    late = [step for step, _ in progress.checks or [] if step > progress.best_step]
    return options.patience is not None and len(late) >= options.patience


def _check(model: nn.Module, validate: Callable[[], float], progress: Fit, best: dict | None) -> dict | None:
    model.eval()
    with torch.no_grad():
        value = validate()
    model.train()
    progress.checks = [*(progress.checks or []), (progress.steps, value)]
    if value < progress.best:
        progress.best, progress.best_step = value, progress.steps
        best = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    return best


def _groups(model: nn.Module, options: FitOptions) -> list[dict[str, Any]]:
    scalars = set(getattr(model, "scalar_parameter_names", list)()) if options.scalar_scale != 1.0 else set()
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            scale = options.scalar_scale if name in scalars and parameter.dim() <= 1 else 1.0
            decay = options.weight_decay if parameter.dim() >= 2 else 0.0
            groups.setdefault((scale, decay), []).append(parameter)
    return [{"params": found, "weight_decay": decay, "scale": scale} for (scale, decay), found in groups.items()]


def _set_rate(optimizer: torch.optim.Optimizer, options: FitOptions, step: int) -> None:
    warmup = max(1, round(options.warmup * options.steps))
    done = min(1.0, max(0.0, (step - warmup) / max(1, options.steps - warmup)))
    shape = {"cosine": 0.5 * (1 + math.cos(math.pi * done)), "linear": 1 - done, "constant": 1.0}[options.decay]
    rate = options.min_learning_rate + (options.learning_rate - options.min_learning_rate) * shape
    for group in optimizer.param_groups:
        group["lr"] = rate * min(1.0, (step + 1) / warmup) * group["scale"]


def _clip(model: nn.Module, options: FitOptions) -> None:
    if options.clip_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), options.clip_norm)
    if options.clip_value is not None:
        nn.utils.clip_grad_value_(model.parameters(), options.clip_value)


def _finite(loss: float, name: str, step: int) -> float:
    if not math.isfinite(loss):
        raise TesseraError(f"{name}: the loss must be finite; got {loss} at step {step}. Lower the learning rate.")
    return loss


def _save(place: Path, model: nn.Module, optimizer, progress: Fit, best: dict | None) -> None:
    """One file holds everything, so that a kill leaves the old checkpoint or the new one."""
    tensors = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    tensors |= {f"best/{name}": tensor for name, tensor in (best or {}).items()}
    for index, state in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{name}": tensor for name, tensor in state.items()}
    tensors["random"] = torch.get_rng_state()  # dropout draws from it
    tensors["progress"] = torch.tensor([progress.steps, progress.best_step], dtype=torch.float64)
    tensors["values"] = torch.tensor([progress.loss, progress.best, progress.seconds], dtype=torch.float64)
    tensors["checks"] = torch.tensor(progress.checks or [], dtype=torch.float64).reshape(-1, 2)
    unshared = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    place.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(place.with_suffix(".safetensors"), lambda path: save_file(unshared, path))


def _load(place: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Fit, dict | None]:
    path = place.with_suffix(".safetensors")
    if not path.exists():
        return Fit(), None
    tensors = load_file(path)
    steps, best_step = (int(value) for value in tensors["progress"])
    loss, best, seconds = tensors["values"].tolist()
    checks = [(int(step), value) for step, value in tensors["checks"].tolist()]
    model.load_state_dict(_under(tensors, "model/"))
    torch.set_rng_state(tensors["random"])
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in _under(tensors, "optimizer/").items():
        index, field = name.split("/")
        state.setdefault(int(index), {})[field] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return Fit(steps, loss, best, best_step, checks, seconds), _under(tensors, "best/") or None


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
