"""One run in one process: where it keeps its checkpoints, how long it took over all its interruptions."""

import hashlib
import json
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from tessera.base.dataclass_io import to_json
from tessera.evaluation.provenance import provenance
from tessera.papers.catalogue import EXPERIMENTS
from tessera.papers.experiment import Record, Run, RunContext
from tessera.papers.progress import Progress

Show = Callable[[float, str], None]


@dataclass(frozen=True)
class Job:
    """The runs of one experiment and budget, under `home`. It and all it takes and returns can be pickled.

    Attributes:
        imports: files and modules of plugins, which each process imports before its first run.
    """

    experiment: str
    home: Path
    imports: tuple[str, ...] = ()

    def folder(self, run: Run) -> Path:
        """Where a run keeps its checkpoints: a folder of its own for each configuration and version."""
        made = {"version": EXPERIMENTS[self.experiment].version, "configuration": to_json(run.configuration)}
        digest = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:10]
        return self.home / f"{re.sub('[^A-Za-z0-9.=-]+', '_', run.key)}-{digest}"

    def do(self, run: Run, threads: int | None = None, show: Show | None = None) -> Record:
        """Train and evaluate in this process; `show(share, note)` is called as it goes on."""
        if threads is not None:
            torch.set_num_threads(threads)
        torch.manual_seed(run.configuration.seed)  # whatever this process did before
        folder = self.folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        before, began = Progress.read(folder).seconds, time.perf_counter()
        last = -math.inf

        def report(share: float, note: str) -> None:
            nonlocal last
            now = time.perf_counter()
            if now - last >= 1.0:
                last = now
                Progress(min(1.0, share), note, before + now - began).write(folder)
                if show is not None:
                    show(share, note)

        device = "cuda" if torch.cuda.is_available() else "cpu"
        outcome = EXPERIMENTS[self.experiment].execute(run, RunContext(folder, report, device))
        seconds = before + time.perf_counter() - began
        made_with = provenance(seed=run.configuration.seed, wall_seconds=seconds)
        return Record(run.configuration, to_json(outcome), made_with)
