"""Runs in processes of their own: what they come to, and what is left of them when one fails."""

import multiprocessing
import os
import time
from concurrent.futures import wait
from pathlib import Path

import pytest

from tessera.papers import runner
from tessera.papers.experiment import Run
from tests.papers.chores import Chores, two_that_wait
from tests.refusals import refused, refused_in_a_line


@pytest.fixture(scope="module")
def processes():
    """New processes that are forked where the code is imported: PyTorch takes seconds, and each test starts two."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.papers.chores"])
    return context


@pytest.fixture
def do(tmp_path, processes, monkeypatch):
    monkeypatch.setattr(runner, "SPAWN", processes)
    finished, shown = {}, []

    def finish(run, record):
        finished[run.key] = record
        (tmp_path / "go").touch()

    def call(*keys):
        # As in real runs, the configuration is a dictionary: a run cannot be the key of another one.
        runner.do_side_by_side(Chores(tmp_path), [Run(key, {"key": key}) for key in keys], 2, 1, finish, shown.append)

    call.finished, call.shown = finished, shown
    return call


def test_each_run_is_done_once_and_elsewhere_and_shown_meanwhile(do):
    do("work 1", "wait", "work 2", "work 3")
    assert sorted(do.finished) == ["wait", "work 1", "work 2", "work 3"]
    assert {run.key for shown in do.shown for run, _, _ in shown} >= {"wait"}
    for key, record in do.finished.items():
        assert record.configuration == {"key": key}
        assert record.outcome == {"threads": 1}
        assert record.provenance["process"] != os.getpid()


def test_processes_without_a_run_end_by_themselves(do, monkeypatch):
    """A process that is stopped leaves semaphores behind, of which Python then warns."""
    started, start = [], runner.SPAWN.Process.start
    monkeypatch.setattr(runner.SPAWN.Process, "start", lambda process: started.append(process) or start(process))
    do("work 1", "work 2")
    assert [process.exitcode for process in started] == [0, 0]


def test_a_failure_waits_for_no_other_and_ends_it(do, tmp_path):
    refused("fail late: failed", do, "wait", "fail late")
    assert do.finished == {}
    (waiting,) = tmp_path.glob("*.process")
    wait_for_the_end_of([waiting])


def test_a_killed_process_is_told_in_a_line(do):
    refused(r"reproduce chores: a worker process must not end early; that of die was killed", do, "die", "wait")


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("fail", "fail: failed"),
        ("python", "reproduce chores: python must fit into memory; got MemoryError"),
        ("torch", "reproduce chores: torch must fit into memory; got DefaultCPUAllocator: not enough memory"),
    ],
)
def test_a_failure_is_told_in_a_line_and_what_ended_in_the_same_moment_is_kept(do, monkeypatch, key, said):
    """Both are done when the parent looks: the good one is stored before the bad one is told."""
    monkeypatch.setattr(runner, "wait", lambda futures, *first: wait(futures))
    refused_in_a_line(said, do, key, "work")
    assert list(do.finished) == ["work"]


def test_a_mistake_in_the_code_is_told_with_its_place(do):
    with pytest.raises(RuntimeError, match=r"(?s)mistake:\n.*chores\.py.*ZeroDivisionError"):
        do("mistake")


def test_no_process_outlives_the_parent(processes, tmp_path):
    """Killed, the parent cannot end them; left alone they would write over the checkpoints of the next call."""
    parent = processes.Process(target=two_that_wait, args=[tmp_path])
    parent.start()
    while len(actual := list(tmp_path.glob("*.process"))) < 2:
        assert parent.is_alive()
        time.sleep(0.01)
    parent.kill()
    parent.join()
    wait_for_the_end_of(actual)


def wait_for_the_end_of(actual):
    deadline = time.monotonic() + 20
    while any(is_running(int(path.stem)) for path in actual):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(process):
    try:
        os.kill(process, 0)
        # A process that ended stays in the table until its new parent has looked, and may leave it at any line here.
        state = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][0] if Path("/proc").exists() else "?"
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"
