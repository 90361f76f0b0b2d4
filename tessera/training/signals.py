"""Ctrl-C, a scheduler's SIGTERM or a lost terminal: the step is ended, a checkpoint written, and the run stops."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tqdm import tqdm

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interruption:
    """Whether one of `SIGNALS` came inside `listening`. A second one raises `KeyboardInterrupt` at once."""

    def __init__(self) -> None:
        self.is_requested = False
        self._terminals: list[int] = []

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals until the block ends; outside the main thread Python allows no handlers, so nothing.

        A signal that is ignored (SIGHUP under nohup) stays so.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._terminals = [number for number in (1, 2) if os.isatty(number)]
        heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._interrupt) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _interrupt(self, number: int, frame: Any) -> None:
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True
        if number == getattr(signal, "SIGHUP", None):
            _mute(self._terminals)
        with suppress(RuntimeError):  # it came inside a write to the same stream, which takes no other
            tqdm.write(
                "Stopping after this step, with a checkpoint. Ctrl-C again stops at once, without.", file=sys.stderr
            )


def _mute(terminals: list[int]) -> None:
    """Send to nowhere what would be written to terminals that are gone: every write would fail."""
    with open(os.devnull, "wb") as nowhere:
        for number in terminals:
            os.dup2(nowhere.fileno(), number)
