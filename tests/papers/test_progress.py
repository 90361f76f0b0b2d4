"""How far runs have come, in their folders and on the screen."""

from tessera.papers import runner as progress
from tessera.papers.experiment import Run
from tessera.papers.runner import Bar, Progress

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
