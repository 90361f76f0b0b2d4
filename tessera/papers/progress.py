"""How far runs have come: a small file per run, and one bar over all of them."""

import contextlib
import io
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from tqdm import tqdm

from tessera.base.files import write_text_atomically
from tessera.papers.experiment import Run

NAME = "progress.json"
SECONDS_BETWEEN_LINES = 60.0


@dataclass(frozen=True)
class Progress:
    """Of one run: `share` of it done, a `note`, and the `seconds` it took so far, earlier attempts included."""

    share: float = 0.0
    note: str = ""
    seconds: float = 0.0

    def write(self, folder: Path) -> None:
        """Leave it in the run's folder."""
        with contextlib.suppress(PermissionError):  # Windows, while the parent reads it: the next one comes in a second
            write_text_atomically(folder / NAME, json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """What the run left there last; nothing if it left nothing."""
        try:
            return cls(**json.loads((folder / NAME).read_text()))
        except (OSError, ValueError, TypeError, RecursionError):
            return cls()


class Bar:
    """One bar over the `runs` of a command, in units of their cost; it gives the time left for the `pending` ones.

    On a terminal it moves; into a file it is a line a minute.
    """

    def __init__(self, runs: Sequence[Run], pending: Sequence[Run]) -> None:
        self.total = sum(run.cost for run in runs)
        self.done = self.total - sum(run.cost for run in pending)
        self.moves = sys.stderr.isatty()
        form = "{desc} {percentage:3.0f}%|{bar:20}| {elapsed}<{remaining} {postfix}"
        target = (
            {"file": sys.stderr} if self.moves else {"file": io.StringIO(), "mininterval": math.inf, "ascii": False}
        )
        self.bar = tqdm(total=self.total, initial=self.done, bar_format=form, leave=False, **target)
        self.said = time.monotonic()

    def show(self, under_way: Sequence[tuple[Run, float, str]]) -> None:
        """Runs under way, each with its share done and a note."""
        notes = "; ".join(f"{run.key}: {note}" for run, _, note in under_way if note)
        self.bar.set_postfix_str(notes[:100], refresh=False)
        now = self.done + sum(run.cost * min(1.0, share) for run, share, _ in under_way)
        # A bar never goes back, even when a run is begun anew.
        self.bar.update(max(0.0, now - self.bar.n))
        if self.moves:
            self.bar.refresh()
        elif time.monotonic() - self.said >= SECONDS_BETWEEN_LINES:
            self.said = time.monotonic()
            print(str(self.bar).strip(), file=sys.stderr)

    def finished(self, run: Run, seconds: float) -> None:
        """One run more is done, in so many seconds."""
        self.done += run.cost
        self.bar.write(f"{run.key}: done in {seconds:.0f} s", file=sys.stderr)
        self.show([])

    def close(self) -> None:
        """Take the bar away."""
        self.bar.close()
