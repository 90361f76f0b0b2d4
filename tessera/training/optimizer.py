"""AdamW groups and the learning-rate schedule."""

import math
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from tessera.training.sections import TrainingSection


class Rates(Protocol):
    """What `parameter_groups` needs to know; `TrainingSection` is one."""

    learning_rate: float
    weight_decay: float
    scalar_learning_rate_scale: float


def parameter_groups(model: nn.Module, section: Rates) -> list[dict[str, Any]]:
    """Matrices with weight decay, vectors without, and per-head scalars with their own learning rate.

    A matrix is a parameter of two or more dimensions; norms and biases have one. Per-head scalars are the
    one-dimensional parameters that the model names in `scalar_parameter_names()`, if it has that method.
    """
    named = getattr(model, "scalar_parameter_names", list)()
    scalars = set(named) if section.scalar_learning_rate_scale != 1.0 else set()
    matrices, vectors, scaled = [], [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_scalar = name in scalars and parameter.dim() <= 1
            (scaled if is_scalar else matrices if parameter.dim() >= 2 else vectors).append(parameter)
    rate = section.learning_rate
    groups = [
        {"params": matrices, "weight_decay": section.weight_decay, "lr": rate},
        {"params": vectors, "weight_decay": 0.0, "lr": rate},
        {"params": scaled, "weight_decay": 0.0, "lr": rate * section.scalar_learning_rate_scale},
    ]
    return [group for group in groups if group["params"]]


def make_optimizer(model: nn.Module, section: TrainingSection) -> torch.optim.AdamW:
    """AdamW over `parameter_groups`."""
    return torch.optim.AdamW(parameter_groups(model, section), lr=section.learning_rate, betas=section.betas)


def learning_rate_factor(step: int, *, warmup: int, steps: int, floor: float, decay: str = "cosine") -> float:
    """The schedule as a factor of the peak rate: linear from 1/warmup to 1, then from 1 down to `floor`.

    `decay` is "cosine", "linear" or "constant" (which stays at 1).

    >>> [round(learning_rate_factor(step, warmup=2, steps=6, floor=0.1), 3) for step in range(7)]
    [0.5, 1.0, 1.0, 0.868, 0.55, 0.232, 0.1]
    """
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, steps - warmup))
    shape = {"cosine": 0.5 * (1 + math.cos(math.pi * progress)), "linear": 1 - progress, "constant": 1.0}[decay]
    return floor + (1 - floor) * shape


def make_scheduler(optimizer: torch.optim.Optimizer, section: TrainingSection) -> LambdaLR:
    """`learning_rate_factor` on every parameter group."""
    floor = section.min_learning_rate / section.learning_rate
    factor = partial(learning_rate_factor, warmup=section.warmup_steps, steps=section.steps, floor=floor)
    return LambdaLR(optimizer, factor)
