"""What came of one bad input: an answer, a sentence, or a failure of ours."""

import io
import signal
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

import tessera
from tessera.base.errors import TesseraError

LIBRARY = str(Path(tessera.__file__).parent)
SECONDS = 20  # a machine may be busy


@dataclass
class Tally:
    """How many inputs there were, and what failed: a cause (exception and line of the library) with an example."""

    name: str
    tried: int = 0
    causes: Counter = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, cause: str | None, example: str = "") -> None:
        """One input more; `cause` is None where the promise was kept."""
        self.tried += 1
        if cause is not None:
            self.causes[cause] += 1
            self.examples.setdefault(cause, example[:300])

    @property
    def failed(self) -> int:
        return sum(self.causes.values())

    def row(self) -> str:
        return f"| {self.name} | {self.tried:,} | {self.failed:,} | {len(self.causes)} |"

    def report(self) -> str:
        """The causes, the most frequent first."""
        return "\n".join(
            f"{self.name}: {n} x {cause}\n    {self.examples[cause]}" for cause, n in self.causes.most_common()
        )


class TooLong(BaseException):
    """An input takes more than a few seconds."""


def _alarm(*_):
    raise TooLong


def cause_of(call: Callable[[], object], may_take_long: bool = False) -> str | None:
    """None when `call` returns or raises a `TesseraError` of a few lines; else exception and innermost line of ours.

    A call that takes more than a few seconds is left; it counts as a failure unless it `may_take_long`.
    """
    previous = signal.signal(signal.SIGALRM, _alarm)
    signal.alarm(SECONDS)
    try:
        return _outcome(call)
    except TooLong:
        return None if may_take_long else f"more than {SECONDS} seconds"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def _outcome(call: Callable[[], object]) -> str | None:
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            call()
        return None
    except TesseraError as error:
        text = str(error)
        return None if text.strip() and "Traceback" not in text else "an empty or unreadable sentence"
    except Exception as error:
        signal.alarm(0)
        return _cause(error)


def _cause(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(LIBRARY)]
    where = (
        f"at {Path(frames[-1].filename).relative_to(LIBRARY)}:{frames[-1].lineno}" if frames else "outside the library"
    )
    return f"{type(error).__name__} {where}"
