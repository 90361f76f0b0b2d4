"""Ctrl-C or a scheduler's SIGTERM during training: the step is ended, a checkpoint written, and the run stops."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback


class Interruption(TrainerCallback):
    """After a Ctrl-C or SIGTERM inside `listening`: log, save and stop at the end of the step that is being done.

    It must come after the callback that schedules checkpoints. A second one raises `KeyboardInterrupt` at once.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self.any_process = lambda requested: requested  # the trainer replaces it where there are several processes

    def on_step_end(self, args, state, control, **kwargs):
        """See `TrainerCallback`."""
        if self.any_process(self.is_requested):
            control.should_log = control.should_save = control.should_training_stop = True
        return control

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch both signals until the block ends; outside the main thread Python allows no handlers, so nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupt(self, number: int, frame: Any) -> None:
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True
        tqdm.write("Stopping after this step, with a checkpoint. Ctrl-C again stops at once, without.", file=sys.stderr)
