"""Progress bars in a file: lines, now and then, in place of one line that is written over."""

import io
import sys
import time
from typing import TextIO


class BarLines(io.TextIOBase):
    """Standard error for tqdm's bars, where it is no terminal: their carriage returns become line ends.

    A bar that is full is said at once, others every so many `seconds`; anything else passes.
    """

    def __init__(self, stream: TextIO, seconds: float) -> None:
        self.stream, self.seconds, self.said, self.follows_bar = stream, seconds, float("-inf"), False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """By which tqdm knows what it can draw."""
        return self.stream.encoding

    def write(self, text: str) -> int:
        """What tqdm or anybody else writes."""
        is_bar = text.startswith("\r")
        if is_bar:
            bar, now = text.strip(), time.monotonic()
            if bar and ("100%" in bar or now - self.said >= self.seconds):
                self.said = now
                self.stream.write(bar + "\n")
        elif not (self.follows_bar and text == "\n"):  # which closes a bar
            self.stream.write(text)
        self.follows_bar = is_bar
        return len(text)

    def flush(self) -> None:
        """See `io.TextIOBase`."""
        self.stream.flush()


def bar_stream(seconds: float = 10.0) -> TextIO:
    """Where bars are written: standard error, as `BarLines` where it is no terminal."""
    is_there = sys.stderr.isatty() or isinstance(sys.stderr, BarLines)
    return sys.stderr if is_there else BarLines(sys.stderr, seconds)  # type: ignore[return-value]
