"""Progress bars in a file: lines, now and then, in place of one line that is written over."""

import io
import sys
import time
from typing import TextIO

SECONDS_BETWEEN_LINES = 10.0


class BarLines(io.TextIOBase):
    """Standard error for tqdm's bars, where it is no terminal: their carriage returns become line ends.

    A bar that is full is said at once, others every ten seconds; anything else passes.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.said, self.follows_bar = stream, float("-inf"), False

    def write(self, text: str) -> int:
        """What tqdm or anybody else writes."""
        is_bar = text.startswith("\r")
        if is_bar:
            bar, now = text.strip(), time.monotonic()
            if bar and ("100%" in bar or now - self.said >= SECONDS_BETWEEN_LINES):
                self.said = now
                self.stream.write(bar + "\n")
        elif not (self.follows_bar and text == "\n"):  # which closes a bar
            self.stream.write(text)
        self.follows_bar = is_bar
        return len(text)

    def flush(self) -> None:
        """See `io.TextIOBase`."""
        self.stream.flush()


def bar_stream() -> TextIO:
    """Where bars are written: standard error, as `BarLines` where it is no terminal."""
    is_there = sys.stderr.isatty() or isinstance(sys.stderr, BarLines)
    return sys.stderr if is_there else BarLines(sys.stderr)  # type: ignore[return-value]
