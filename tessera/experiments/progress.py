"""How far runs in other processes have come: a small file per run, and one bar over all of them."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from tessera.experiments.experiment import Run
from tessera.experiments.folders import write_atomically

NAME = "progress.json"
SECONDS_BETWEEN_LINES = 60.0


def reporter(folder: Path, every: float = 1.0) -> Callable[[float, str], None]:
    """`report(share, note)` for a run that works in `folder`; at most one write in `every` seconds."""
    last = 0.0

    def report(share: float, note: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= every:
            last = now
            text = json.dumps({"share": min(1.0, share), "note": note})
            write_atomically(folder / NAME, lambda draft: draft.write_text(text))

    return report


def reported(folder: Path) -> tuple[float, str]:
    """What the run of `folder` reported last: (share, note)."""
    try:
        found = json.loads((folder / NAME).read_text())
    except (OSError, ValueError):
        return 0.0, ""
    return found["share"], found["note"]


class Bar:
    """One bar over all runs of a command, in units of their cost; it gives the time left."""

    def __init__(self, runs: list[Run], done: float) -> None:
        self.total = sum(run.cost for run in runs)
        self.start = done
        # On a terminal a bar that moves; in a log file a line a minute.
        quiet = {} if sys.stderr.isatty() else {"mininterval": SECONDS_BETWEEN_LINES, "maxinterval": 3600}
        form = "{desc} {percentage:3.0f}%|{bar:20}| {elapsed}<{remaining} {postfix}"
        self.bar = tqdm(total=self.total, initial=done, bar_format=form, leave=False, **quiet)

    def show(self, done: float, active: dict[str, str]) -> None:
        """`done` units of cost are done; `active` maps the keys of running runs to their notes."""
        self.bar.n = min(self.total, max(self.bar.n, done))
        self.bar.set_postfix_str("; ".join(f"{key}: {note}" for key, note in active.items())[:100], refresh=False)
        self.bar.update(0)
        if sys.stderr.isatty():
            self.bar.refresh()

    def say(self, line: str) -> None:
        """A line above the bar."""
        tqdm.write(line, file=sys.stderr)

    def close(self) -> None:
        """Take the bar away."""
        self.bar.close()
