"""How a stage of training changes the weights, and how often it logs, validates and saves."""

import math
from dataclasses import dataclass, field

from tessera.base.errors import expect
from tessera.recipes.sections import Stage, TrainingSection


@dataclass(frozen=True)
class FitOptions:
    """AdamW with warm-up and decay; the names are those of a recipe's `TrainingSection`.

    Attributes:
        steps, learning_rate, min_learning_rate, warmup_ratio: the rate rises over this share of the steps (at least
            one) to its peak and falls along `decay` ("cosine", "linear", "constant") to the minimum. schedule_ratio:
            the step of the minimum as a multiple of the steps: with 2 the training ends halfway down.
        weight_decay: on matrices alone. betas: of AdamW. clip, clip_value: the largest norm of the gradient (inf: it is
            only measured), and the largest absolute value in it; None is no clipping.
        scalar_learning_rate_scale: factor of the rate for the per-head scalars, see
            `tessera.training.optimizer.scalar_parameters`. scalar_learning_rate_scales: other factors for some of
            them, by the last part of their name, such as "mix".
        evaluate_every: steps between validations. patience: stop after so many without a better one; None never.
        checkpoint_seconds: at least so long between checkpoints. checkpoint_every: also after so many steps; 0: not.
        log_every: steps between reports. warmup_steps: in place of `warmup_ratio`, and may be 0.
        on_nonfinite: "stop", or "skip" and count the step, when its gradient is not finite.
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
