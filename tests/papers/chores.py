"""A job without a model, for processes of their own: its runs do what their keys say."""

import multiprocessing
import os
import time
from dataclasses import dataclass
from pathlib import Path

from tessera.base.errors import TesseraError
from tessera.papers import runner
from tessera.papers.experiment import Record, Run


@dataclass(frozen=True)
class Chores:
    """`work`, `fail`, `fail late` (when another waits), `mistake`, `die`, `wait` (until there is `home / "go"`).

    `python` and `torch` find no memory.
    """

    home: Path
    experiment: str = "chores"
    imports: tuple[str, ...] = ()

    def folder(self, run):
        return self.home / run.key

    def do(self, run, threads):
        word = run.key.split()[0]
        if word == "wait":
            (self.home / f"{os.getpid()}.process").touch()
            while not (self.home / "go").exists():
                time.sleep(0.01)
        while word == "fail" and "late" in run.key and not list(self.home.glob("*.process")):
            time.sleep(0.01)
        if word == "fail":
            raise TesseraError(f"{run.key}: failed")
        if word == "mistake":
            1 / 0  # noqa: B018
        if word == "python":
            raise MemoryError
        if word == "torch":
            raise RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes.\nof C++")
        if word == "die":
            os._exit(1)
        return Record(run.configuration, {"threads": threads}, {"process": os.getpid()})


def two_that_wait(home):
    """In a process that will be killed: two others, forked where the code is imported."""
    runner.SPAWN = multiprocessing.get_context("forkserver")
    runner.SPAWN.set_forkserver_preload(["tests.papers.chores"])
    runs = [Run("wait", {}), Run("wait too", {})]
    runner.do_side_by_side(Chores(home), runs, 2, 1, lambda run, record: None, lambda shown: None)
