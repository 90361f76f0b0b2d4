"""Runs in processes of their own, several at a time."""

import contextlib
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Self

from tessera.base import plugins
from tessera.base.errors import TesseraError
from tessera.papers.experiment import Record, Run
from tessera.papers.progress import Progress

if TYPE_CHECKING:
    from tessera.papers.job import Job

# A fork would copy PyTorch's threads in whatever state they are.
SPAWN = multiprocessing.get_context("spawn")


def run_in_pool(
    job: "Job",
    pending: Sequence[Run],
    workers: int,
    threads: int,
    finish: Callable[[Run, Record], None],
    show: Callable[[list[tuple[Run, float, str]]], None],
) -> None:
    """Do all `pending` runs, `workers` at a time with `threads` each.

    `finish(run, record)` is called for each that is done, `show` every second with (run, share, note) of those that
    are under way. When one fails, those that are done are finished first, and the others are stopped.

    Raises:
        TesseraError: that of the first run that failed, or that a process was killed.
        RuntimeError: any other exception of a run, with its traceback there.
    """
    waiting = list(reversed(pending))
    team = [_Worker.hire(job, threads) for _ in range(min(workers, len(pending)))]
    try:
        while waiting or any(worker.run for worker in team):
            for worker in team:
                if worker.run is None and waiting:
                    worker.take(waiting.pop())
            busy = {worker.line: worker for worker in team if worker.run is not None}
            ready = wait(list(busy), timeout=1.0)
            answers = [worker.answer(job) for line, worker in busy.items() if line in ready]
            failures = [answer for _, answer in answers if not isinstance(answer, Record)]
            for run, answer in answers:
                if isinstance(answer, Record):
                    finish(run, answer)
            if failures:
                raise failures[0]
            runs = [worker.run for worker in team if worker.run is not None]
            under_way = [(run, Progress.read(job.folder(run))) for run in runs]
            show([(run, progress.share, progress.note) for run, progress in under_way])
    finally:
        for worker in team:
            worker.dismiss()
        for worker in team:
            worker.process.join(timeout=5.0)


@dataclass
class _Worker:
    """A process, the line to it, and the run it is at."""

    process: BaseProcess
    line: Connection
    run: Run | None = None

    @classmethod
    def hire(cls, job: "Job", threads: int) -> Self:
        """Start a process of so many threads that does runs of `job`."""
        ours, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=_work, args=(theirs, job, threads), daemon=True)
        process.start()
        theirs.close()  # so that the end of the process is the end of the line
        return cls(process, ours)

    def take(self, run: Run) -> None:
        """Send it a run to do."""
        self.run = run
        with contextlib.suppress(BrokenPipeError):  # a process that has ended is noticed when its answer is read
            self.line.send(run)

    def dismiss(self) -> None:
        """Let it end, at once if it is at a run: that has its checkpoints, and nobody waits for it any more."""
        if self.run is None:  # by itself, so that it gives its semaphores back
            with contextlib.suppress(BrokenPipeError):
                self.line.send(None)
        else:
            self.process.kill()  # SIGTERM would wait for the end of a step

    def answer(self, job: "Job") -> tuple[Run, Record | Exception]:
        """Wait for the outcome of its run: the record, or the error (also of a process that died)."""
        run, self.run = self.run, None
        assert run is not None, "only who is at a run answers"
        try:
            return run, self.line.recv()
        except (EOFError, ConnectionResetError):
            return run, TesseraError(
                f"reproduce {job.experiment}: a worker process must not end early; that of {run.key} was killed (out "
                "of memory?). The same command goes on from the checkpoints; --workers 1 needs the least memory."
            )


def _work(line: Connection, job: "Job", threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to answer
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    for name in job.imports:  # what a run is made of must be known before it is received
        plugins.import_file(name)
    while (run := line.recv()) is not None:
        answer: Record | Exception
        try:
            answer = job.do(run, threads)
        except TesseraError as error:
            answer = error
        except Exception:
            answer = RuntimeError(f"{run.key}:\n{traceback.format_exc()}")
        line.send(answer)


def _end_with_the_parent() -> None:
    """Alone, a process would write over the checkpoints of the next call."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
