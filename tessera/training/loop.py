"""The training loop: every recipe and every experiment trains by `train_stages`.

Batches are a function of the step, and checkpoints hold all the rest (weights, optimizer, random state, progress): a
killed training ends with the weights of one that was not, to the bit on CPU.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from tessera.base.errors import TesseraError, TrainingInterrupted
from tessera.training.checkpoint import Checkpoints, TrainingProgress
from tessera.training.checkpoint_tensors import model_tensors
from tessera.training.distributed import SINGLE_PROCESS, Processes
from tessera.training.optimizer import FitOptions, make_optimizer, schedule_factor

Report = Callable[[float, str], None]  # hears the share of a training that is done, in [0, 1], and a note


def unreported(share: float, note: str) -> None:
    """A `Report` that nobody reads."""


class NotFinite(TesseraError):
    """A training whose loss, gradients or weights became NaN or infinite."""


class TrainingLog:
    """What hears of a training as it goes on."""

    def begin(self, number: int, progress: TrainingProgress) -> None:
        """Stage `number` begins, goes on from a checkpoint, or is over already."""

    def step(self, progress: TrainingProgress) -> None:
        """A step is done."""

    def line(self, progress: TrainingProgress, learning_rate: float) -> None:
        """Time for a line: after the first step, every `log_every`-th, and before each validation and checkpoint."""


@dataclass(frozen=True)
class StagePlan:
    """One stage of a training; a plain training is one stage.

    Attributes:
        loss_at: the loss of a step, which depends on the step and the model alone; or, one after the other, parts
            whose sum it is (micro-batches). Of several processes each gives its share of the sum.
        validate: lower is better: the best weights win, and the stage ends early once it reaches `target` or runs out
            of patience. None, or a value of None: the last weights are kept. The same in all processes.
        begin: called before the stage, also before one that a checkpoint says is done.
        rate_factor: multiplies the learning rate of the schedule at a step.
        name: of the stage, in errors.
    """

    options: FitOptions
    loss_at: Callable[[int], Tensor | Iterable[Tensor]]
    validate: Callable[[], float | None] | None = None
    target: float = -math.inf
    begin: Callable[[], None] = lambda: None
    rate_factor: Callable[[int], float] = lambda step: 1.0
    name: str = "training"


def train_stages(
    model: nn.Module,
    stages: Sequence[StagePlan],
    checkpoints: Checkpoints,
    log: TrainingLog,
    is_stopped: Callable[[], bool] = lambda: False,
    processes: Processes = SINGLE_PROCESS,
) -> list[TrainingProgress]:
    """Train `model` in place, stage after stage, and return how each went.

    Each stage begins with the best weights of the one before, or its last where nothing was validated. Several
    `processes` go through the same steps with the same weights, or each with its part of them (`sharding.shard`).

    Raises:
        NotFinite: a loss, gradient or weight that is NaN or infinite.
        TrainingInterrupted: `is_stopped()` held; the step was ended, and a checkpoint holds it.
    """
    seed = torch.initial_seed()
    for number, stage in enumerate(stages):
        stage.begin()
        progress = checkpoints.ended(number)
        if progress is None:
            progress = _train_stage(model, stage, number, checkpoints, log, is_stopped, processes, seed)
            checkpoints.stages.append(progress)
        else:
            log.begin(number, progress)
    checkpoints.finish()
    model.eval()
    return checkpoints.stages


def _train_stage(
    model: nn.Module,
    stage: StagePlan,
    number: int,
    checkpoints: Checkpoints,
    log: TrainingLog,
    is_stopped: Callable[[], bool],
    processes: Processes,
    seed: int,
) -> TrainingProgress:
    options, parameters = stage.options, list(model.parameters())
    optimizer = make_optimizer(model, options)
    peaks = [group["lr"] for group in optimizer.param_groups]
    progress, best = checkpoints.restore(optimizer)
    log.begin(number, progress)
    model.train()
    saved = time.perf_counter()
    began = saved - progress.seconds
    over = _is_over(progress, stage)
    for step in () if over else range(progress.steps, options.steps):
        step_began = time.perf_counter()
        processes.draw_apart(seed, number, step)
        factor = schedule_factor(options, step) * stage.rate_factor(step)
        for group, peak in zip(optimizer.param_groups, peaks):
            group["lr"] = peak * factor
        loss, norm = _backward(parameters, optimizer, stage.loss_at(step), options, processes)
        _update(optimizer, stage, progress, loss, norm, checkpoints)
        now = time.perf_counter()
        progress.steps, progress.seconds = step + 1, now - began
        progress.step_seconds += now - step_began
        log.step(progress)
        is_last, stopped = step + 1 == options.steps, processes.any(is_stopped())
        is_due = now - saved > options.checkpoint_seconds or _every(options.checkpoint_every, step + 1)
        is_validated = stage.validate is not None and (is_last or _every(options.evaluate_every, step + 1))
        is_saved = is_last or stopped or is_due
        if is_saved or is_validated or step == 0 or _every(options.log_every, step + 1):
            _expect_finite_loss(progress, stage, checkpoints)
            log.line(progress, optimizer.param_groups[0]["lr"])
            progress.unlogged.clear()
            progress.step_seconds = 0.0
        if is_validated:
            best = _validate(model, stage, progress, best)
            over = _is_over(progress, stage)
        if is_saved or over:
            _expect_finite_weights(model, stage, checkpoints, processes, step + 1)
            checkpoints.save(optimizer, progress, best)
            saved = time.perf_counter()
        if over:
            break
        if stopped and not is_last:
            checkpoints.finish()
            done = f"stopped after step {step + 1:,} of {options.steps:,}"
            raise TrainingInterrupted(f"{stage.name}: {done}; a checkpoint holds it.")
    if best is not None:
        for name, tensor in model_tensors(model).items():
            tensor.copy_(best[name])
    return progress


def _every(interval: int, step: int) -> bool:
    return interval > 0 and step % interval == 0


def _backward(
    parameters: list[nn.Parameter],
    optimizer: torch.optim.Optimizer,
    losses: Tensor | Iterable[Tensor],
    options: FitOptions,
    processes: Processes,
) -> tuple[Tensor, float | None]:
    """Leave the step's clipped gradients in the parameters; its loss and, where it is measured, their norm."""
    optimizer.zero_grad(set_to_none=True)
    total: Tensor | None = None
    is_sharded = any(isinstance(parameter, DTensor) for parameter in parameters[:1])
    for loss in (losses,) if isinstance(losses, Tensor) else losses:
        # FSDP takes the mean over the processes of the gradients that it shards.
        loss.backward(torch.full_like(loss, processes.count) if is_sharded else None)
        total = loss.detach() if total is None else total + loss.detach()
    assert total is not None, "a step has a loss"
    if processes.count > 1:
        total = total.clone()
        processes.all_reduce([total, *(p.grad for p in parameters if p.grad is not None and not is_sharded)])
    norm = None
    if options.clip is not None:
        length = nn.utils.clip_grad_norm_(parameters, options.clip)
        norm = (length.full_tensor() if isinstance(length, DTensor) else length).item()
    if options.clip_value is not None:
        nn.utils.clip_grad_value_(parameters, options.clip_value)
    return total, norm


def _update(
    optimizer: torch.optim.Optimizer,
    stage: StagePlan,
    progress: TrainingProgress,
    loss: Tensor,
    norm: float | None,
    checkpoints: Checkpoints,
) -> None:
    """Change the weights, unless loss or gradients are not finite, where that is measured."""
    if norm is None or (math.isfinite(norm) and math.isfinite(loss.item())):
        optimizer.step()
        progress.add(loss, norm)
    elif stage.options.on_nonfinite == "skip":
        progress.skipped += 1
    else:
        _stop(stage.name, "loss and gradients", "at", checkpoints, progress.steps + 1)


def _is_over(progress: TrainingProgress, stage: StagePlan) -> bool:
    """Whether the stage has reached its target, or run out of patience."""
    if progress.best <= stage.target:
        return True
    late = [step for step, _ in progress.checks if step > progress.best_step]
    return stage.options.patience is not None and len(late) >= stage.options.patience


def _validate(
    model: nn.Module, stage: StagePlan, progress: TrainingProgress, best: dict[str, Tensor] | None
) -> dict[str, Tensor] | None:
    """Note what the validation says; the best weights so far."""
    assert stage.validate is not None
    model.eval()
    with torch.no_grad():
        value = stage.validate()
    if isinstance(model, FSDPModule):
        model.reshard()  # a call without a backward pass leaves the outermost parameters whole
    model.train()
    if value is None:
        return None
    progress.checks.append((progress.steps, value))
    if value < progress.best:
        progress.best, progress.best_step = value, progress.steps
        best = {name: tensor.clone() for name, tensor in model_tensors(model).items()}
    return best


def _expect_finite_loss(progress: TrainingProgress, stage: StagePlan, checkpoints: Checkpoints) -> None:
    if progress.recent:
        progress.loss = torch.stack(list(progress.recent)).mean().item()
        if not math.isfinite(progress.loss):
            _stop(stage.name, "loss", "at", checkpoints, progress.steps)


def _expect_finite_weights(
    model: nn.Module, stage: StagePlan, checkpoints: Checkpoints, processes: Processes, step: int
) -> None:
    """Before weights that an update has made infinite or NaN are stored."""
    local = (getattr(parameter, "_local_tensor", parameter) for parameter in model.parameters())
    if processes.any(not all(bool(torch.isfinite(tensor).all()) for tensor in local)):
        _stop(stage.name, "weights", "after", checkpoints, step)


def _stop(name: str, what: str, when: str, checkpoints: Checkpoints, step: int) -> NoReturn:
    last = checkpoints.latest
    kept = f"the last good checkpoint is {last}" if last else "no checkpoint had been written yet"
    raise NotFinite(
        f"{name}: {what} must be finite; got NaN or infinity {when} step {step}. Stopped: {kept}. "
        "Lower the learning rate, or leave such steps out: training.on_nonfinite=skip."
    )
