"""Do the runs of an experiment that are not done yet, side by side, and show all of them."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import torch

from tessera.base.errors import TesseraError, expect
from tessera.base.files import remove, writing
from tessera.base.locks import held
from tessera.evaluation.provenance import num_cores
from tessera.papers.experiment import EXPERIMENTS, Record, Run, RunSelection
from tessera.papers.jobs import Bar, Job, do_side_by_side
from tessera.papers.report import write_report
from tessera.papers.results import ResultsFile

LOCK = "run.lock"
DRAWN_EVERY = 10.0  # seconds, at most: some runs are quicker than the figure
CHECKPOINTS = Path("runs/reproduce")


def reproduce(
    name: str,
    selection: RunSelection,
    *,
    output: Path = Path("results"),
    checkpoints: Path = CHECKPOINTS,
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
        expect(value is None or value >= 1, "reproduce", option, "be at least 1", value)
    runs = _matching(experiment.runs(selection), only)
    results = ResultsFile(output, name, selection.budget)
    done = {key: record.configuration for key, record in results.read().items()}
    pending = [run for run in runs if done.get(run.key) != run.configuration]
    if pending:
        results.prepare()
        job = Job(name, checkpoints / name / selection.budget, imports)
        try:
            with _alone_in([job.folder(run) for run in pending]):
                _do(job, runs, pending, results, workers)
        except BaseException:
            if results.path.exists():
                write_report(results)  # what was finished since it was last drawn
            raise
    return write_report(results)


@contextmanager
def _alone_in(folders: list[Path]) -> Iterator[None]:
    """Keep other processes out of the runs' folders, and delete what those that died have left half written."""
    with ExitStack() as stack:
        for folder in folders:
            with writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(held(folder / LOCK, "Wait for it, or choose other runs with --only."))
                for path in folder.glob("*.tmp"):
                    remove(path)
        yield


def _matching(runs: list[Run], pattern: str | None) -> list[Run]:
    matching = [run for run in runs if pattern is None or fnmatchcase(run.key, pattern)]
    if not matching:
        keys = ", ".join(run.key for run in runs[:3])
        raise TesseraError(f"reproduce: --only must match a run; got {pattern!r}. Runs are {keys}, ...")
    return matching


def _do(job: Job, runs: list[Run], pending: list[Run], results: ResultsFile, workers: int | None) -> None:
    bar, drawn = Bar(runs, pending), time.monotonic()

    def finish(run: Run, record: Record) -> None:
        nonlocal drawn
        results.add(run.key, record)
        bar.finished(run, record.provenance["wall_seconds"])
        if time.monotonic() - drawn > DRAWN_EVERY:
            write_report(results)
            drawn = time.monotonic()

    def show(run: Run, share: float, note: str) -> None:
        bar.show([(run, share, note)])

    at_once = 1 if torch.cuda.is_available() else num_cores()  # one GPU has one run's memory
    workers = min(workers or at_once, len(pending))
    try:
        if workers == 1:
            for run in pending:
                finish(run, job.do(run, show=partial(show, run)))
        else:
            do_side_by_side(job, pending, workers, max(1, num_cores() // workers), finish, bar.show)
    finally:
        bar.close()
