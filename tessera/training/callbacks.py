"""What happens around the Trainer's steps: when to log, evaluate and save; the progress bar; refusing NaN."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import torch
from torch.nn.utils import get_total_norm
from tqdm import tqdm
from transformers import TrainerCallback

from tessera.base.errors import TesseraError
from tessera.recipes.sections import TrainingSection


class NotFinite(TesseraError):
    """A training whose loss, gradients or weights became NaN or infinite."""


class Schedule(TrainerCallback):
    """Log, evaluate and save after the steps that the recipe names, and all three after the last.

    A checkpoint is always preceded by a log line, so that no step's loss is averaged across a resume.
    """

    def __init__(self, section: TrainingSection) -> None:
        self.section = section

    def on_step_end(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        step, section = state.global_step, self.section
        last = step >= state.max_steps
        control.should_save = last or step % section.checkpoint_every == 0
        control.should_evaluate = last or step % section.evaluate_every == 0
        control.should_log = control.should_save or step == 1 or step % section.log_every == 0
        return control


class StepClock(TrainerCallback):
    """Seconds spent inside training steps; evaluation and checkpoints do not count."""

    def __init__(self) -> None:
        self.seconds, self.steps, self._began = 0.0, 0, 0.0

    def on_step_begin(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        self._began = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        self.seconds += time.perf_counter() - self._began
        self.steps += 1

    def take(self) -> tuple[float, int]:
        """(seconds, steps) since the last call."""
        taken = self.seconds, self.steps
        self.seconds, self.steps = 0.0, 0
        return taken


class NonFiniteGuard(TrainerCallback):
    """Before each update: stop, or skip and count, when a gradient is not finite.

    A loss that is not finite makes its gradients so. All processes decide together. Weights are never touched by such
    a step, and checkpoints of weights that are not finite are not written, so the last checkpoint is a good one.
    """

    def __init__(self, mode: str) -> None:
        self.mode, self.skipped = mode, 0
        # The trainer replaces both, the first where there are several processes.
        self.all_finite: Callable[[bool], bool] = lambda finite: finite
        self.last_checkpoint: Callable[[], Path | None] = lambda: None

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        """See `TrainerCallback`."""
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        if self.all_finite(bool(torch.isfinite(get_total_norm(gradients)))):
            return
        if self.mode == "skip":
            self.skipped += 1
            model.zero_grad(set_to_none=True)
            return
        self._stop("loss and gradients", "at", state.global_step + 1)

    def require_finite_weights(self, model: torch.nn.Module, step: int) -> None:
        """Raise `TesseraError` when an update has made a weight infinite or NaN: before it is stored."""
        local = [getattr(parameter, "_local_tensor", parameter) for parameter in model.parameters()]
        if not self.all_finite(all(bool(torch.isfinite(tensor).all()) for tensor in local)):
            self._stop("weights", "after", step)

    def _stop(self, what: str, when: str, step: int) -> NoReturn:
        checkpoint = self.last_checkpoint()
        kept = f"the last good checkpoint is {checkpoint}" if checkpoint else "no checkpoint had been written yet"
        raise NotFinite(
            f"training: {what} must be finite; got NaN or infinity {when} step {step}. Stopped: {kept}. "
            "Lower training.learning_rate, or set training.on_nonfinite=skip to leave such steps out."
        )


class ProgressBar(TrainerCallback):
    """One line: step, time left, loss, tokens per second, last validation loss."""

    def __init__(self, name: str, enabled: bool = True) -> None:
        self.name, self.enabled = name, enabled
        self.bar: tqdm | None = None
        self.notes: dict[str, str] = {}

    def on_train_begin(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        shape = "{desc} {percentage:3.0f}% {bar:20} step {n_fmt}/{total_fmt}, {remaining} left{postfix}"
        self.bar = tqdm(
            total=state.max_steps,
            initial=state.global_step,
            desc=self.name,
            bar_format=shape,
            disable=not (self.enabled and state.is_world_process_zero),
            mininterval=0.5 if sys.stderr.isatty() else 10.0,
        )

    def on_step_end(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        if self.bar is not None:
            self.bar.update(1)

    def note(self, **notes: str) -> None:
        """Show these texts from now on, in the order in which they were first given."""
        self.notes.update(notes)
        if self.bar is not None:
            self.bar.set_postfix_str(", ".join(self.notes.values()), refresh=False)

    def on_train_end(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        self.close()

    def close(self) -> None:
        """Leave the bar as it is and end its line."""
        if self.bar is not None:
            self.bar.close()
