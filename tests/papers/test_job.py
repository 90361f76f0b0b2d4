"""One run in one process: its folder, its time, its seed, and what is stored of it."""

from dataclasses import dataclass

import pytest
import torch

from tessera.papers import runner as progress
from tessera.papers.experiment import EXPERIMENTS, Run
from tessera.papers.runner import Bar, Job, Progress


@dataclass(frozen=True)
class Seeded:
    seed: int = 0


class Passing:
    version = 1

    def execute(self, run, context):
        context.report(0.5, "half")
        return {"loss": float("nan"), "curve": (1.0, float("inf"))}


@pytest.fixture
def experiment(monkeypatch):
    monkeypatch.setitem(EXPERIMENTS._entries, "toy", passing := Passing())
    return passing


@pytest.fixture
def job(experiment, tmp_path):
    return Job("toy", tmp_path)


RUN = Run("a run", Seeded())


def test_time_counts_over_interruptions(job):
    """The record of a resumed run has the time of all its attempts."""
    job.folder(RUN).mkdir()
    Progress(0.9, "", 1000.0).write(job.folder(RUN))
    record = job.do(RUN)
    assert 1000.0 <= record.provenance["wall_seconds"] < 1060.0
    assert Progress.read(job.folder(RUN)).seconds >= 1000.0


def test_numbers_that_are_not_finite_are_stored_as_null(job):
    """JSON has no other word for them, and a record that cannot be written is a training lost."""
    assert job.do(RUN).outcome == {"loss": None, "curve": [1.0, None]}


def test_checkpoints_of_another_version_are_not_gone_on_with(job, experiment):
    first = job.folder(RUN)
    assert first != job.folder(Run("a run", Seeded(1)))
    experiment.version = 2
    assert job.folder(RUN) != first


def test_a_run_does_not_depend_on_what_the_process_did_before(job, experiment):
    experiment.execute, drawn = lambda run, context: {"draw": torch.rand(()).item()}, []
    for seed in (0, 0, 1):
        torch.manual_seed(len(drawn))
        drawn.append(job.do(Run("a run", Seeded(seed))).outcome["draw"])
    assert drawn[0] == drawn[1] != drawn[2]


RUNS = [Run("first", {}, cost=1.0), Run("second", {}, cost=3.0)]


def test_a_folder_without_or_with_half_a_file_has_none(tmp_path):
    assert Progress.read(tmp_path) == Progress(0.0, "", 0.0)
    Progress(0.5, "loss 1.2", 7.0).write(tmp_path)
    assert Progress.read(tmp_path) == Progress(0.5, "loss 1.2", 7.0)
    (tmp_path / progress.PROGRESS).write_text('{"share": 0.')
    assert Progress.read(tmp_path) == Progress()


def test_into_a_file_it_is_a_line_a_minute(capsys, monkeypatch):
    seconds = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds[0])
    bar = Bar(RUNS, RUNS)
    for second in range(0, 181, 20):
        seconds[0] = float(second)
        bar.show([(RUNS[1], second / 360, "loss 1.2")])
    bar.close()
    lines = capsys.readouterr().err.splitlines()
    assert [line[:3] for line in lines] == ["0%|", "12%", "25%", "38%"]
    assert all("|██" in line and "second: loss 1.2" in line for line in lines[1:])


def test_what_was_done_before_counts(capsys):
    bar = Bar(RUNS, RUNS[1:])
    assert bar.bar.n == 1.0
    bar.show([(RUNS[1], 0.5, "")])
    assert bar.bar.n == 2.5
    bar.show([(RUNS[1], 0.1, "")])  # begun anew
    assert bar.bar.n == 2.5
    bar.finished(RUNS[1], 12.3)
    assert bar.bar.n == 4.0
    bar.close()
    first, done, last = capsys.readouterr().err.splitlines()
    assert done == "second: done in 12 s"
    assert (first[:3], last[:4]) == ("25%", "100%")
