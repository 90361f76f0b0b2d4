"""Train a small model on batches that are a function of the step; a resumed training ends with the same weights."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from tessera.base.errors import TesseraError, TrainingInterrupted, expect
from tessera.training.distributed import ALONE, Processes
from tessera.training.fit_checkpoint import Fit, load, save
from tessera.training.optimizer import learning_rate_factor, parameter_groups, scalar_parameters

Report = Callable[[float, str], None]
Observe = Callable[[Fit, float], None]


def unobserved(progress: Fit, learning_rate: float) -> None:
    """An `Observe` that looks at nothing."""


def unreported(share: float, note: str) -> None:
    """A `Report` that nobody reads."""


@dataclass(frozen=True)
class FitOptions:
    """AdamW with warm-up and decay; the names are those of a recipe's `TrainingSection`.

    Attributes:
        steps, learning_rate, min_learning_rate, warmup_ratio: the rate rises over this share of the steps to its peak
            and falls along `decay` ("cosine", "linear", "constant") to the minimum. schedule_ratio: the step of the
            minimum as a multiple of the steps: with 2 the training ends halfway down.
        weight_decay: on matrices alone. betas: of AdamW. clip, clip_value: the largest norm of the gradient, and the
            largest absolute value in it; None is no clipping.
        scalar_learning_rate_scale: factor of the rate for the per-head scalars, see
            `tessera.training.optimizer.scalar_parameters`. scalar_learning_rate_scales: other factors for some of
            them, by the last part of their name, such as "mix"; names that the model does not have are left out,
            since kernels differ in what they learn.
        evaluate_every: steps between validations. patience: stop after so many without a better one; None never.
        checkpoint_seconds: at least so long between checkpoints. checkpoint_every: also after so many steps; 0: not.
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

    def __post_init__(self) -> None:
        expect(self.steps >= 1, "fit", "steps", "be at least 1", self.steps, "The budget is too small.")
        expect(self.learning_rate > 0, "fit", "learning_rate", "be positive", self.learning_rate)


def fit(
    model: nn.Module,
    loss_at: Callable[[int], Tensor],
    options: FitOptions,
    folder: Path,
    *,
    report: Report = unreported,
    validate: Callable[[], float] | None = None,
    name: str = "training",
    target: float = -math.inf,
    rate_factor: Callable[[int], float] | None = None,
    observe: Observe = unobserved,
    is_stopped: Callable[[], bool] = lambda: False,
    processes: Processes = ALONE,
) -> Fit:
    """Train `model` in place on `loss_at(step)`; with `validate` (lower is better) the best weights win.

    `loss_at` and `validate` must depend on the step and the model alone: a killed run goes on from
    `folder / name` and ends with the same weights. It ends early once a validation reaches `target`.
    `report(share, note)` hears how far it is, the share in [0, 1].
    `rate_factor(step)` multiplies the learning rate of the schedule. `observe(progress, learning_rate)` sees the start
    (after a kill: what the checkpoint holds), every 20th step, every validation and the end. Once `is_stopped()`, the
    step is ended and a checkpoint written.

    Several `processes` go through the same steps with the same weights: the loss is the sum of what `loss_at` gives in
    each, `validate` must give the same number in all of them, and the first writes the checkpoints, which all read.

    Raises:
        TesseraError: the loss is not finite.
        TrainingInterrupted: it was stopped.
    """
    place = folder / name
    optimizer = _adamw(model, options)
    peaks = [group["lr"] for group in optimizer.param_groups]
    progress, best = load(place, model, optimizer)
    model.train()
    saved = began = time.perf_counter()
    before = progress.seconds
    observe(progress, optimizer.param_groups[0]["lr"])
    while progress.steps < options.steps and not _over(progress, options, target):
        _set_rate(optimizer, peaks, options, progress.steps, rate_factor)
        loss = _step(model, optimizer, loss_at(progress.steps), options, processes)
        progress.steps += 1
        progress.recent = [*progress.recent[-49:], loss]
        now = time.perf_counter()
        progress.seconds = before + now - began
        last = progress.steps == options.steps
        is_checked = last or (options.evaluate_every and progress.steps % options.evaluate_every == 0)
        check = validate if is_checked else None
        is_reported = check is not None or last or progress.steps % 20 == 0
        if is_reported:
            progress.loss = _finite(torch.stack(progress.recent).mean().item(), name, progress.steps)
            report(progress.steps / options.steps, f"{name} loss {progress.loss:.3f}")
        if check is not None:
            best = _check(model, check, progress, best)
        if is_reported:
            observe(progress, optimizer.param_groups[0]["lr"])
        stopped = processes.any(is_stopped())
        is_due = options.checkpoint_every and progress.steps % options.checkpoint_every == 0
        if last or stopped or is_due or now - saved > options.checkpoint_seconds:
            _finite(loss.item(), name, progress.steps)
            if processes.is_first:
                save(place, model, optimizer, progress, best)
            saved = time.perf_counter()
        if stopped and not last:
            raise TrainingInterrupted(f"{name}: stopped after step {progress.steps:,}; a checkpoint holds it.")
    if progress.steps < options.steps and processes.is_first:
        save(place, model, optimizer, progress, best)
    if best is not None:
        model.load_state_dict(best)
    model.eval()
    return progress


def _adamw(model: nn.Module, options: FitOptions) -> torch.optim.AdamW:
    known = {name.rpartition(".")[2] for name in scalar_parameters(model)}
    scales = {name: scale for name, scale in options.scalar_learning_rate_scales.items() if name in known}
    groups = parameter_groups(model, options, scales)
    return torch.optim.AdamW(groups, lr=options.learning_rate, betas=options.betas)


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


def _set_rate(
    optimizer: torch.optim.Optimizer,
    peaks: list[float],
    options: FitOptions,
    step: int,
    rate_factor: Callable[[int], float] | None,
) -> None:
    factor = learning_rate_factor(
        step,
        warmup=max(1, round(options.warmup_ratio * options.steps)),
        steps=round(options.schedule_ratio * options.steps),
        floor=options.min_learning_rate / options.learning_rate,
        decay=options.decay,
    )
    if rate_factor is not None:
        factor *= rate_factor(step)
    for group, peak in zip(optimizer.param_groups, peaks):
        group["lr"] = peak * factor


def _step(
    model: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor, options: FitOptions, processes: Processes
) -> Tensor:
    """The loss of all processes, as which it changes the weights."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    total = loss.detach().clone()
    processes.add_up([total, *(one.grad for one in model.parameters() if one.grad is not None)])
    if options.clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), options.clip)
    if options.clip_value is not None:
        nn.utils.clip_grad_value_(model.parameters(), options.clip_value)
    optimizer.step()
    return total


def _finite(loss: float, name: str, step: int) -> float:
    if not math.isfinite(loss):
        raise TesseraError(f"{name}: the loss must be finite; got {loss} at step {step}. Lower the learning rate.")
    return loss
