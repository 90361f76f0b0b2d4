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
    `processes` go through the same steps with the same weights, or each with its part of them (`distributed.shard`).

    Raises:
        NotFinite: a loss, gradient or weight that is NaN or infinite.
        TrainingInterrupted: `is_stopped()` held; the step was ended, and a checkpoint holds it.
    """
    seed = torch.initial_seed()
    for number, stage in enumerate(stages):
        stage.begin()
        progress = checkpoints.ended(number)
        if progress is None:
            trained = _StageTraining(model, stage, checkpoints, processes).run(number, seed, log, is_stopped)
            checkpoints.stages.append(trained)
        else:
            log.begin(number, progress)
    checkpoints.finish()
    model.eval()
    return checkpoints.stages


class _StageTraining:
    """One stage, which goes on where the latest checkpoint left it."""

    def __init__(self, model: nn.Module, stage: StagePlan, checkpoints: Checkpoints, processes: Processes) -> None:
        self.model, self.stage, self.checkpoints, self.processes = model, stage, checkpoints, processes
        self.options, self.parameters = stage.options, list(model.parameters())
        self.optimizer = make_optimizer(model, stage.options)
        self.peaks = [group["lr"] for group in self.optimizer.param_groups]
        self.progress, self.best = checkpoints.restore(self.optimizer)

    def run(self, number: int, seed: int, log: TrainingLog, is_stopped: Callable[[], bool]) -> TrainingProgress:
        """Train what is left of it; the model ends with the best weights."""
        options, progress = self.options, self.progress
        log.begin(number, progress)
        self.model.train()
        saved = time.perf_counter()
        began = saved - progress.seconds
        over = self._is_over()
        for step in () if over else range(progress.steps, options.steps):
            step_began = time.perf_counter()
            self.processes.draw_apart(seed, number, step)
            factor = schedule_factor(options, step) * self.stage.rate_factor(step)
            for group, peak in zip(self.optimizer.param_groups, self.peaks):
                group["lr"] = peak * factor
            self._update(*self._backward(self.stage.loss_at(step)))
            now = time.perf_counter()
            progress.steps, progress.seconds = step + 1, now - began
            progress.step_seconds += now - step_began
            log.step(progress)
            is_last, stopped = step + 1 == options.steps, self.processes.any(is_stopped())
            is_due = now - saved > options.checkpoint_seconds or _every(options.checkpoint_every, step + 1)
            is_validated = self.stage.validate is not None and (is_last or _every(options.evaluate_every, step + 1))
            is_saved = is_last or stopped or is_due
            if is_saved or is_validated or step == 0 or _every(options.log_every, step + 1):
                self._expect_finite_loss()
                log.line(progress, self.optimizer.param_groups[0]["lr"])
                progress.unlogged.clear()
                progress.step_seconds = 0.0
            if is_validated:
                self._validate()
                over = self._is_over()
            if is_saved or over:
                self._expect_finite_weights()
                self.checkpoints.save(self.optimizer, progress, self.best)
                saved = time.perf_counter()
            if over:
                break
            if stopped and not is_last:
                self.checkpoints.finish()
                done = f"stopped after step {step + 1:,} of {options.steps:,}"
                raise TrainingInterrupted(f"{self.stage.name}: {done}; a checkpoint holds it.")
        if self.best is not None:
            for name, tensor in model_tensors(self.model).items():
                tensor.copy_(self.best[name])
        return progress

    def _backward(self, losses: Tensor | Iterable[Tensor]) -> tuple[Tensor, float | None]:
        """Leave the step's clipped gradients in the parameters; its loss and, where it is measured, their norm."""
        self.optimizer.zero_grad(set_to_none=True)
        total: Tensor | None = None
        is_sharded = isinstance(self.parameters[0], DTensor)
        for loss in (losses,) if isinstance(losses, Tensor) else losses:
            # FSDP takes the mean over the processes of the gradients that it shards.
            loss.backward(torch.full_like(loss, self.processes.count) if is_sharded else None)
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None, "a step has a loss"
        if self.processes.count > 1:
            total = total.clone()
            self.processes.all_reduce([total, *([] if is_sharded else self._gradients())])
        norm = None
        if self.options.clip is not None:
            length = nn.utils.clip_grad_norm_(self.parameters, self.options.clip)
            norm = (length.full_tensor() if isinstance(length, DTensor) else length).item()
        if self.options.clip_value is not None:
            nn.utils.clip_grad_value_(self.parameters, self.options.clip_value)
        return total, norm

    def _gradients(self) -> list[Tensor]:
        """Those that any process has, zeros where another has none (a layer that was dropped): the same list in all."""
        has_one = [parameter.grad is not None for parameter in self.parameters]
        anywhere = self.processes.total(torch.tensor(has_one, dtype=torch.float)).tolist()
        used = [parameter for parameter, count in zip(self.parameters, anywhere) if count]
        for parameter in used:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        return [parameter.grad for parameter in used if parameter.grad is not None]

    def _update(self, loss: Tensor, norm: float | None) -> None:
        """Change the weights, unless loss or gradients are not finite, where that is measured."""
        if norm is None or (math.isfinite(norm) and math.isfinite(loss.item())):
            self.optimizer.step()
            self.progress.recent.append(loss)
            self.progress.unlogged.append(loss)
            self.progress.gradient_norm = norm
        elif self.options.on_nonfinite == "skip":
            self.progress.skipped += 1
        else:
            self._stop("loss and gradients", f"at step {self.progress.steps + 1}")

    def _is_over(self) -> bool:
        """Whether the stage has reached its target, or run out of patience."""
        if self.progress.best <= self.stage.target:
            return True
        late = [step for step, _ in self.progress.checks if step > self.progress.best_step]
        return self.options.patience is not None and len(late) >= self.options.patience

    def _validate(self) -> None:
        """Note what the validation says, and the weights where they are the best so far."""
        assert self.stage.validate is not None
        self.model.eval()
        with torch.no_grad():
            value = self.stage.validate()
        if isinstance(self.model, FSDPModule):
            self.model.reshard()  # a call without a backward pass leaves the outermost parameters whole
        self.model.train()
        if value is None:
            return
        progress = self.progress
        progress.checks.append((progress.steps, value))
        if value < progress.best:
            progress.best, progress.best_step = value, progress.steps
            self.best = {name: tensor.clone() for name, tensor in model_tensors(self.model).items()}

    def _expect_finite_loss(self) -> None:
        if self.progress.recent:
            self.progress.loss = torch.stack(list(self.progress.recent)).mean().item()
            if not math.isfinite(self.progress.loss):
                self._stop("loss", f"at step {self.progress.steps}")

    def _expect_finite_weights(self) -> None:
        """Before weights that an update has made infinite or NaN are stored."""
        local = (getattr(parameter, "_local_tensor", parameter) for parameter in self.parameters)
        if self.processes.any(not all(bool(torch.isfinite(tensor).all()) for tensor in local)):
            self._stop("weights", f"after step {self.progress.steps}")

    def _stop(self, what: str, when: str) -> NoReturn:
        last = self.checkpoints.latest
        kept = f"the last good checkpoint is {last}" if last else "no checkpoint had been written yet"
        raise NotFinite(
            f"{self.stage.name}: {what} must be finite; got NaN or infinity {when}. Stopped: {kept}. "
            "Lower the learning rate, or leave such steps out: training.on_nonfinite=skip."
        )


def _every(interval: int, step: int) -> bool:
    return interval > 0 and step % interval == 0
