"""AdamW groups and the learning-rate schedule."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tessera.base.errors import TesseraError, did_you_mean, expect
from tessera.recipes.sections import Stage, TrainingSection

NO_DECAY = "_no_weight_decay"  # the attribute by which state-spaces/mamba and others mark such parameters


@dataclass(frozen=True)
class FitOptions:
    """AdamW with warm-up and decay; names that a recipe's `TrainingSection` has mean what they mean there.

    Attributes:
        warmup_ratio, warmup_steps: the rate rises over this share of the steps (at least one), or over so many, which
            may be 0. decay: along which it then falls to the minimum: "cosine", "linear" or "constant".
            schedule_ratio: the step of the minimum as a multiple of the steps: with 2 the training ends halfway down.
        clip, clip_value: the largest norm of the gradient (inf: it is only measured), and the largest absolute value in
            it; None is no clipping.
        checkpoint_seconds: at least so long between checkpoints, but for those of `checkpoint_every` (0: none).
    """

    steps: int
    learning_rate: float
    min_learning_rate: float = 0.0
    warmup_ratio: float = 0.1
    decay: str = "cosine"
    schedule_ratio: float = 1.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    clip: float | None = None
    clip_value: float | None = None
    scalar_learning_rate_scale: float = 1.0
    scalar_learning_rate_scales: dict[str, float] = field(default_factory=dict)
    evaluate_every: int = 0
    patience: int | None = None
    checkpoint_seconds: float = 60.0
    checkpoint_every: int = 0
    log_every: int = 20
    warmup_steps: int | None = None
    on_nonfinite: str = "stop"

    def __post_init__(self) -> None:
        expect(self.steps >= 1, "fit", "steps", "be at least 1", self.steps, "The budget is too small.")
        expect(self.learning_rate > 0, "fit", "learning_rate", "be positive", self.learning_rate)

    @property
    def warmup(self) -> int:
        """Steps of the linear rise."""
        return max(1, round(self.warmup_ratio * self.steps)) if self.warmup_steps is None else self.warmup_steps


def stage_options(section: TrainingSection, stage: Stage) -> FitOptions:
    """The options of a stage of a recipe's curriculum, or of its whole training where it has none.

    As published, a stage ends halfway down a linear schedule over twice its steps.
    """
    names = "weight_decay betas scalar_learning_rate_scale scalar_learning_rate_scales evaluate_every checkpoint_every "
    shared = {name: getattr(section, name) for name in f"{names} log_every on_nonfinite patience".split()}
    shared |= {"clip": section.clip or math.inf, "checkpoint_seconds": math.inf}
    if section.curriculum:
        return FitOptions(stage.steps, stage.learning_rate, decay="linear", schedule_ratio=2.0, **shared)
    warmup = section.warmup
    return FitOptions(section.steps, section.learning_rate, section.min_learning_rate, warmup_steps=warmup, **shared)


def parameter_groups(model: nn.Module, options: FitOptions | TrainingSection) -> list[dict[str, Any]]:
    """Matrices with weight decay, all else without, and per-head scalars (`scalar_parameters`) with their own rate.

    A matrix is a parameter of two or more dimensions, but for the decay rates of Mamba and its kin (`A_log`) and for
    what carries `_no_weight_decay`. Raises `TesseraError`: a name in `scalar_learning_rate_scales` that no scalar has.
    """
    scalars, scales = scalar_parameters(model), options.scalar_learning_rate_scales
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    last_parts = {name.rpartition(".")[2] for name in scalars & trained.keys()}
    for name in sorted(scales.keys() - last_parts) if last_parts else ():  # a transformer has no scalars
        raise TesseraError(
            f"training.scalar_learning_rate_scales: {name!r} must name a scalar of this model. "
            f"{did_you_mean(name, last_parts)}"
        )
    groups: dict[tuple[float, float], list[nn.Parameter]] = {(options.weight_decay, 1.0): [], (0.0, 1.0): []}
    for name, parameter in trained.items():
        last = name.rpartition(".")[2]
        scale = scales.get(last, options.scalar_learning_rate_scale) if name in scalars else 1.0
        decays = parameter.dim() >= 2 and last != "A_log" and not getattr(parameter, NO_DECAY, False)
        groups.setdefault((options.weight_decay if decays else 0.0, scale), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": decay, "lr": options.learning_rate * scale}
        for (decay, scale), parameters in groups.items()
        if parameters
    ]


def marked(model: nn.Module) -> list[str]:
    """Names of the parameters that carry `NO_DECAY`, which is lost where another object takes the place of one."""
    return [name for name, parameter in model.named_parameters() if getattr(parameter, NO_DECAY, False)]


def mark(model: nn.Module, names: list[str]) -> None:
    """Have them carry it again."""
    for name in names:
        setattr(model.get_parameter(name), NO_DECAY, True)


def scalar_parameters(model: nn.Module) -> set[str]:
    """Names of the per-head scalars (rates, bandwidths, scales, mixing weights): what the layers of `model` list in
    their class attribute `scalar_parameters`."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name in getattr(type(module), "scalar_parameters", ())
        if isinstance(getattr(module, name), nn.Parameter)
    }


def make_optimizer(model: nn.Module, options: FitOptions | TrainingSection) -> torch.optim.AdamW:
    """AdamW over `parameter_groups`."""
    return torch.optim.AdamW(parameter_groups(model, options), lr=options.learning_rate, betas=options.betas)


def schedule_factor(options: FitOptions, step: int) -> float:
    """The rate after `step` steps as a factor of its peak: up from 1/warmup to 1, then along `decay` to the minimum.

    >>> options = FitOptions(steps=6, learning_rate=1.0, min_learning_rate=0.1, warmup_steps=2)
    >>> [round(schedule_factor(options, step), 3) for step in range(7)]
    [0.5, 1.0, 1.0, 0.868, 0.55, 0.232, 0.1]
    """
    warmup, floor = options.warmup, options.min_learning_rate / options.learning_rate
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, round(options.schedule_ratio * options.steps) - warmup))
    shapes = {"cosine": 0.5 * (1 + math.cos(math.pi * progress)), "linear": 1 - progress, "constant": 1.0}
    return floor + (1 - floor) * shapes[options.decay]
