"""One run in one process: its folder, its time, its seed, and what is stored of it."""

from dataclasses import dataclass

import torch

from tessera.papers.experiment import Run
from tessera.papers.runner import Job, Progress


def test_time_counts_over_interruptions(tmp_path, monkeypatch):
    """The record of a resumed run has the time of all its attempts."""
    run = Run("a run", Seeded())
    job = Job("toy", tmp_path)
    monkeypatch.setitem(experiments(), "toy", Passing())
    job.folder(run).mkdir()
    Progress(0.9, "", 1000.0).write(job.folder(run))
    record = job.do(run)
    assert 1000.0 <= record.provenance["wall_seconds"] < 1060.0
    assert Progress.read(job.folder(run)).seconds >= 1000.0


@dataclass(frozen=True)
class Seeded:
    seed: int = 0


class Passing:
    version = 1

    def execute(self, run, context):
        context.report(0.5, "half")
        return {"loss": float("nan"), "curve": (1.0, float("inf"))}


def experiments():
    from tessera.papers.experiment import EXPERIMENTS

    return EXPERIMENTS._entries


def test_numbers_that_are_not_finite_are_stored_as_null(tmp_path, monkeypatch):
    """JSON has no other word for them, and a record that cannot be written is a training lost."""
    monkeypatch.setitem(experiments(), "toy", Passing())
    assert Job("toy", tmp_path).do(Run("a run", Seeded())).outcome == {"loss": None, "curve": [1.0, None]}


def test_checkpoints_of_another_version_are_not_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setitem(experiments(), "toy", passing := Passing())
    job, run = Job("toy", tmp_path), Run("a run", Seeded())
    first = job.folder(run)
    assert first != job.folder(Run("a run", Seeded(1)))
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
        drawn.append(job.do(Run("a run", Seeded(seed))).outcome["draw"])
    assert drawn[0] == drawn[1] != drawn[2]
