"""Do the runs of an experiment that are not done yet, side by side, and show all of them."""

import hashlib
import json
import multiprocessing
import os
import re
import signal
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from fnmatch import fnmatchcase
from pathlib import Path

from tessera.errors import TesseraError, expect
from tessera.experiments.catalogue import EXPERIMENTS
from tessera.experiments.experiment import BUDGETS, Choice, Context, Experiment, Record, Run
from tessera.experiments.progress import Bar, reported, reporter
from tessera.experiments.report import write_report
from tessera.experiments.results import ResultsFile

CHECKPOINTS = Path("runs/reproduce")


def reproduce(
    name: str,
    choice: Choice,
    *,
    output: Path = Path("results"),
    checkpoints: Path = CHECKPOINTS,
    workers: int | None = None,
    only: str | None = None,
) -> Path:
    """Train and evaluate what `choice` asks for and is not in the results yet; returns the path of the table.

    Interrupted at any moment and called again, it goes on: finished runs are in `output/<name>/<budget>.json`, started
    ones have checkpoints. Every finished run redraws the figure and the table. `workers` processes share the cores;
    None is one per core, 1 works in this process. `only` is a pattern for the keys of runs, as in "biweight/1000/*".

    Raises:
        TesseraError: an unknown experiment, budget, model or kernel; results of another version; a training that fails.
    """
    experiment = EXPERIMENTS[name]
    expect(choice.budget in BUDGETS, f"reproduce {name}", "--budget", "be one of " + ", ".join(BUDGETS), choice.budget)
    for option, value in (("--seeds", choice.seeds), ("--workers", workers)):
        expect(value is None or value >= 1, f"reproduce {name}", option, "be at least 1", value)
    results = ResultsFile(output, name, choice.budget)
    stored = results.read()
    runs = _matching(name, experiment.runs(choice), only)
    pending = [run for run in runs if not _is_done(run, stored)]
    home = checkpoints / name / choice.budget
    if pending:
        _do(name, experiment, choice, runs, pending, home, results, workers)
    return write_report(name, experiment, results)


def _matching(name: str, runs: list[Run], pattern: str | None) -> list[Run]:
    found = [run for run in runs if pattern is None or fnmatchcase(run.key, pattern)]
    if not found:
        keys = ", ".join(run.key for run in runs[:3])
        raise TesseraError(f"reproduce {name}: --only must match a run; got {pattern!r}. Runs are {keys}, ...")
    return found


def _is_done(run: Run, stored: dict[str, Record]) -> bool:
    return run.key in stored and stored[run.key].configuration == json.loads(json.dumps(run.configuration))


def folder_of(run: Run, home: Path) -> Path:
    """Where a run keeps its checkpoints: a folder of its own for each configuration."""
    digest = hashlib.sha256(json.dumps(run.configuration, sort_keys=True).encode()).hexdigest()[:10]
    return home / f"{re.sub('[^A-Za-z0-9.=-]+', '_', run.key)}-{digest}"


def _do(name, experiment, choice, runs, pending, home, results, workers) -> None:
    workers = min(workers or _cores(), len(pending))
    bar = Bar(runs, sum(run.cost for run in runs) - sum(run.cost for run in pending))
    try:
        if workers == 1:
            for run in pending:
                bar.show(bar.bar.n, {run.key: "running"})
                _finish(run, work(name, run, folder_of(run, home), choice.budget, None), results, bar)
                bar.show(bar.bar.n + run.cost, {})
                write_report(name, experiment, results)
        else:
            _side_by_side(name, experiment, choice, pending, home, results, bar, workers)
    finally:
        bar.close()


def _side_by_side(name, experiment: Experiment, choice, pending, home, results, bar: Bar, workers: int) -> None:
    threads = max(1, _cores() // workers)
    spawn = multiprocessing.get_context("spawn")  # a fork would copy PyTorch's threads in whatever state they are
    pool = ProcessPoolExecutor(workers, mp_context=spawn, initializer=_leave_interrupts_to_the_parent)
    waiting: dict[Future, Run] = {}
    try:
        for run in pending:
            waiting[pool.submit(work, name, run, folder_of(run, home), choice.budget, threads)] = run
        finished = bar.bar.n
        while waiting:
            done, _ = wait(waiting, timeout=1.0, return_when=FIRST_COMPLETED)
            for future in done:
                run = waiting.pop(future)
                _finish(run, future.result(), results, bar)
                finished += run.cost
                write_report(name, experiment, results)
            shares = {run: reported(folder_of(run, home)) for future, run in waiting.items() if future.running()}
            partly = sum(run.cost * share for run, (share, _) in shares.items())
            bar.show(finished + partly, {run.key: note for run, (_, note) in shares.items() if note})
    except BrokenProcessPool:
        raise TesseraError(
            f"reproduce {name}: a worker process must not end early; one was killed (out of memory?). "
            "The same command goes on from the checkpoints; --workers 1 needs the least memory."
        ) from None
    finally:
        # What is running cannot be recalled, but its checkpoint stands.
        for process in (getattr(pool, "_processes", None) or {}).values():
            if waiting:
                process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def work(name: str, run: Run, folder: Path, budget: str, threads: int | None) -> Record:
    """Do one run in this process (a worker's task: everything it takes and returns can be pickled)."""
    import torch

    from tessera.evaluation.provenance import provenance

    if threads is not None:
        torch.set_num_threads(threads)
    folder.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    outcome = EXPERIMENTS[name].execute(run, Context(folder, reporter(folder), device))
    made_with = provenance(
        seed=run.configuration.get("seed"),
        wall_seconds=time.perf_counter() - began,
        command=f"tessera reproduce {name} --budget {budget}",
    )
    return Record(json.loads(json.dumps(run.configuration)), json.loads(json.dumps(outcome)), made_with)


def _finish(run: Run, record: Record, results: ResultsFile, bar: Bar) -> None:
    results.add(run.key, record)
    bar.say(f"{run.key}: done in {record.provenance['wall_seconds']:.0f} s")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
