"""Do the runs of an experiment that are not done yet, in this process or side by side, and show all of them."""

import contextlib
import hashlib
import json
import math
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

import torch
from tqdm import tqdm

from tessera.base import plugins
from tessera.base.bar_lines import bar_stream
from tessera.base.dataclass_io import to_json
from tessera.base.errors import TesseraError, expect, first_line, is_out_of_memory
from tessera.base.files import remove, write_text_atomically, writing
from tessera.base.locks import held
from tessera.base.random_numbers import random_numbers_kept
from tessera.evaluation.provenance import num_cores, provenance
from tessera.papers.experiment import EXPERIMENTS, Record, Run, RunContext, RunSelection
from tessera.papers.results import ResultsFile, write_report

PROGRESS = "progress.json"
LINE_SECONDS = 60.0
# A fork would copy PyTorch's threads in whatever state they are.
SPAWN = multiprocessing.get_context("spawn")
LOCK = "run.lock"
DRAWN_EVERY = 10.0  # seconds, at most: some runs are quicker than the figure
Show = Callable[[list[tuple[Run, float, str]]], None]  # of runs under way: each with its share done, and a note


@dataclass(frozen=True)
class Progress:
    """Of one run: `share` of it done, a `note`, and the `seconds` it took so far, earlier attempts included."""

    share: float = 0.0
    note: str = ""
    seconds: float = 0.0

    def write(self, folder: Path) -> None:
        """Leave it in the run's folder."""
        with contextlib.suppress(PermissionError):  # Windows, while the parent reads it: the next one comes in a second
            write_text_atomically(folder / PROGRESS, json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """What the run left there last; nothing if it left nothing."""
        try:
            return cls(**json.loads((folder / PROGRESS).read_text()))
        except (OSError, ValueError, TypeError, RecursionError):
            return cls()


class Bar:
    """One bar over the `runs` of a command, in units of their cost; it gives the time left for the `pending` ones.

    On a terminal it moves; into a file it is a line a minute.
    """

    def __init__(self, runs: Sequence[Run], pending: Sequence[Run]) -> None:
        total = sum(run.cost for run in runs)
        self.done = total - sum(run.cost for run in pending)
        form, stream = "{desc} {percentage:3.0f}%|{bar:20}| {elapsed}<{remaining} {postfix}", bar_stream(LINE_SECONDS)
        self.bar = tqdm(total=total, initial=self.done, bar_format=form, leave=False, file=stream)

    def show(self, under_way: list[tuple[Run, float, str]]) -> None:
        """See `Show`."""
        notes = "; ".join(f"{run.key}: {note}" for run, _, note in under_way if note)
        self.bar.set_postfix_str(notes[:100], refresh=False)
        now = self.done + sum(run.cost * min(1.0, share) for run, share, _ in under_way)
        # A bar never goes back, even when a run is begun anew.
        self.bar.update(max(0.0, now - self.bar.n))
        self.bar.refresh()

    def finished(self, run: Run, seconds: float) -> None:
        """One run more is done, in so many seconds."""
        self.done += run.cost
        self.bar.write(f"{run.key}: done in {seconds:.0f} s", file=sys.stderr)
        self.show([])

    def close(self) -> None:
        """Take the bar away."""
        self.bar.close()


@dataclass(frozen=True)
class Job:
    """The runs of one experiment and budget, under `home`. It and all it takes and returns can be pickled."""

    experiment: str
    home: Path
    imports: tuple[str, ...] = ()

    def folder(self, run: Run) -> Path:
        """Where a run keeps its checkpoints: a folder of its own for each configuration and version."""
        made = {"version": EXPERIMENTS[self.experiment].version, "configuration": to_json(run.configuration)}
        digest = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:10]
        return self.home / f"{re.sub('[^A-Za-z0-9.=-]+', '_', run.key)}-{digest}"

    @random_numbers_kept()
    def do(self, run: Run, threads: int | None = None, show: Show | None = None) -> Record:
        """Train and evaluate in this process; `show` is called as it goes on."""
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
                    show([(run, share, note)])

        device = "cuda" if torch.cuda.is_available() else "cpu"
        outcome = EXPERIMENTS[self.experiment].execute(run, RunContext(folder, report, device))
        made_with = provenance(seed=run.configuration.seed, wall_seconds=before + time.perf_counter() - began)
        return Record(run.configuration, to_json(outcome), made_with)


def do_side_by_side(
    job: Job, pending: Sequence[Run], workers: int, threads: int, finish: Callable[[Run, Record], None], show: Show
) -> None:
    """Do all `pending` runs, `workers` at a time with `threads` each.

    `finish(run, record)` is called for each that is done, `show` every second with those that are under way. When one
    fails, those that are done are finished first, and the others are stopped. Raises the `TesseraError` of the first
    run that failed or was killed, other exceptions as a RuntimeError with their traceback.
    """
    ended, alive = SPAWN.Pipe(duplex=False)
    # One process each, so that it is known at which run a killed one was.
    idle = [ProcessPoolExecutor(1, SPAWN, _prepare, (ended, job.imports)) for _ in range(min(workers, len(pending)))]
    pools, waiting = list(idle), list(reversed(pending))
    busy: dict[Future[Record], tuple[ProcessPoolExecutor, Run]] = {}
    try:
        while waiting or busy:
            while waiting and idle:
                pool, run = idle.pop(), waiting.pop()
                busy[pool.submit(job.do, run, threads)] = (pool, run)
            done = {future: busy.pop(future) for future in wait(busy, 1.0, FIRST_COMPLETED).done}
            for future, (pool, run) in done.items():
                idle.append(pool)
                if future.exception() is None:
                    finish(run, future.result())
            for future, (_, run) in done.items():
                if (error := future.exception()) is not None:
                    raise _told(job, run, error) from None
            under_way = [(run, Progress.read(job.folder(run))) for _, run in busy.values()]
            show([(run, progress.share, progress.note) for run, progress in under_way])
    except BaseException:
        alive.close()  # no process waits for the end of its run: it has its checkpoints
        raise
    finally:
        for pool in pools:
            pool.shutdown(cancel_futures=True)
        alive.close()


def _told(job: Job, run: Run, error: BaseException) -> Exception:
    """What is said of a run that failed."""
    if isinstance(error, BrokenProcessPool) or not isinstance(error, Exception):  # killed, or stopped by SIGTERM
        problem = f"a worker process must not end early; that of {run.key} was killed (out of memory?)."
    elif is_out_of_memory(error):
        problem = f"{run.key} must fit into memory; got {first_line(error)[:200]}."
    else:  # the cause is the traceback in the other process
        return error if isinstance(error, TesseraError) else RuntimeError(f"{run.key}:\n{error.__cause__}")
    advice = "The same command goes on from the checkpoints; --workers 1 needs the least memory."
    return TesseraError(f"reproduce {job.experiment}: {problem} {advice}")


def _prepare(ended: Connection, imports: Sequence[str]) -> None:
    """In a new process: it leaves Ctrl-C to the parent, and ends when the other side of `ended` is closed.

    That is so when the parent dies, too: alone, a process would write over the checkpoints of the next call.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        ended.poll(None)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    for name in imports:  # what a run is made of must be known before it is received
        plugins.import_file(name)


def reproduce(
    name: str,
    selection: RunSelection,
    *,
    output: Path = Path("results"),
    checkpoints: Path = Path("runs/reproduce"),
    workers: int | None = None,
    only: str | None = None,
    imports: tuple[str, ...] = (),
) -> Path:
    """Train and evaluate what `selection` asks for and is not in the results yet; returns the path of the table.

    Interrupted at any moment and called again, it goes on: finished runs are in `output/<name>/<budget>.json`, started
    ones have checkpoints. Figure and table are drawn again as runs finish, at most every ten seconds. `workers`
    processes share the cores; None is one per core (with a GPU: one), 1 works in this process. `only` is a pattern for
    the keys of runs, as in "biweight/1000/*". `imports` are plugins that the worker processes import too, as this
    process has.
    Raises `TesseraError`: an unknown experiment, budget, model or kernel; results of another version; a training that
    fails.
    """
    experiment = EXPERIMENTS[name]
    for option, value in (("--seeds", selection.seeds), ("--workers", workers)):
        expect(value is None or 1 <= value <= 10_000, "reproduce", option, "lie in [1, 10,000]", value)
    planned = experiment.runs(selection)
    runs = [run for run in planned if only is None or fnmatchcase(run.key, only)]
    if not runs:
        keys = ", ".join(run.key for run in planned[:3])
        raise TesseraError(f"reproduce: --only must match a run; got {only!r}. Runs are {keys}, ...")
    results = ResultsFile(output, name, selection.budget)
    done = {key: record.configuration for key, record in results.read().items()}
    pending = [run for run in runs if done.get(run.key) != run.configuration]
    if pending:
        results.prepare()
        job = Job(name, checkpoints / name / selection.budget, imports)
        try:
            with ExitStack() as stack:  # no other process in the runs' folders
                for folder in map(job.folder, pending):
                    with writing(folder):
                        folder.mkdir(parents=True, exist_ok=True)
                        stack.enter_context(held(folder / LOCK, "Wait for it, or choose other runs with --only."))
                        for path in folder.glob("*.tmp"):  # what processes that died have left half written
                            remove(path)
                _do(job, runs, pending, results, workers)
        except BaseException:
            if results.path.exists():
                write_report(results)  # what was finished since it was last drawn
            raise
    return write_report(results)


def _do(job: Job, runs: list[Run], pending: list[Run], results: ResultsFile, workers: int | None) -> None:
    bar, drawn = Bar(runs, pending), time.monotonic()

    def finish(run: Run, record: Record) -> None:
        nonlocal drawn
        results.add(run.key, record)
        bar.finished(run, record.provenance["wall_seconds"])
        if time.monotonic() - drawn > DRAWN_EVERY:
            write_report(results)
            drawn = time.monotonic()

    at_once = 1 if torch.cuda.is_available() else num_cores()  # one GPU has one run's memory
    workers = min(workers or at_once, len(pending))
    try:
        if workers == 1:
            for run in pending:
                finish(run, job.do(run, show=bar.show))
        else:
            do_side_by_side(job, pending, workers, max(1, num_cores() // workers), finish, bar.show)
    finally:
        bar.close()
