"""How far runs have come, in their folders and on the screen."""

import pytest
import torch

from tessera.experiments import progress
from tessera.experiments.experiment import Run
from tessera.experiments.job import Job, plain
from tessera.experiments.progress import Bar, Progress

RUNS = [Run("first", {}, cost=1.0), Run("second", {}, cost=3.0)]


def test_a_folder_without_or_with_half_a_file_has_none(tmp_path):
    assert Progress.read(tmp_path) == Progress(0.0, "", 0.0)
    Progress(0.5, "loss 1.2", 7.0).write(tmp_path)
    assert Progress.read(tmp_path) == Progress(0.5, "loss 1.2", 7.0)
    (tmp_path / progress.NAME).write_text('{"share": 0.')
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
    assert [line[:3] for line in lines] == ["12%", "25%", "38%"]
    assert all("|██" in line and "second: loss 1.2" in line for line in lines)


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
    assert capsys.readouterr().err == "second: done in 12 s\n"


def test_time_counts_over_interruptions(tmp_path, monkeypatch):
    """The record of a resumed run has the time of all its attempts."""
    run = Run("a run", {"seed": 0})
    job = Job("toy", tmp_path)
    monkeypatch.setitem(experiments(), "toy", Passing())
    job.folder(run).mkdir()
    Progress(0.9, "", 1000.0).write(job.folder(run))
    record = job.do(run)
    assert 1000.0 <= record.provenance["wall_seconds"] < 1060.0
    assert Progress.read(job.folder(run)).seconds >= 1000.0


class Passing:
    version = 1

    def execute(self, run, context):
        context.report(0.5, "half")
        return {"loss": float("nan"), "curve": (1.0, float("inf"))}


def experiments():
    from tessera.experiments.catalogue import EXPERIMENTS

    return EXPERIMENTS._entries


def test_numbers_that_are_not_finite_are_stored_as_null(tmp_path, monkeypatch):
    """JSON has no other word for them, and a record that cannot be written is a training lost."""
    monkeypatch.setitem(experiments(), "toy", Passing())
    assert Job("toy", tmp_path).do(Run("a run", {"seed": 0})).outcome == {"loss": None, "curve": [1.0, None]}


@pytest.mark.parametrize(("value", "stored"), [({1: (2, "x")}, {"1": [2, "x"]}), (-float("inf"), None), (0.5, 0.5)])
def test_plain(value, stored):
    assert plain(value) == stored


def test_checkpoints_of_another_version_are_not_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setitem(experiments(), "toy", passing := Passing())
    job, run = Job("toy", tmp_path), Run("a run", {"seed": 0})
    first = job.folder(run)
    assert first != job.folder(Run("a run", {"seed": 1}))
    passing.version = 2
    assert job.folder(run) != first


def test_a_run_does_not_depend_on_what_the_process_did_before(tmp_path, monkeypatch):
    class Drawing(Passing):
        def execute(self, run, context):
            return {"draw": torch.rand(()).item()}

    monkeypatch.setitem(experiments(), "toy", Drawing())
    job, drawn = Job("toy", tmp_path), []
    for seed in (0, 0, 1):
        torch.manual_seed(len(drawn))
        drawn.append(job.do(Run("a run", {"seed": seed})).outcome["draw"])
    assert drawn[0] == drawn[1] != drawn[2]
