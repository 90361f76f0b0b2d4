"""`tessera tasks` and `tessera reproduce`: what they print, and what they refuse in one line."""

import inspect
import json
import multiprocessing
import subprocess
import sys
import time

import pytest

from tessera.cli.main import main
from tessera.papers import runner
from tessera.papers.experiment import EXPERIMENTS, RunSelection
from tessera.papers.runner import do_side_by_side
from tessera.tasks.task import TASKS
from tests.covering import some
from tests.papers import toy


def test_tasks_lists_all_of_them_one_line_each(done):
    lines = done("tasks")[0].splitlines()
    names = [line.split()[0] for line in lines if line and "tessera reproduce" not in line]
    assert names == [*TASKS, *EXPERIMENTS]
    assert all(len(line) <= 120 for line in lines)


def test_a_pattern_that_matches_no_run_is_refused(refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(EXPERIMENTS._entries, "toy", toy.EXPERIMENT)
    message = "--only must match a run; got '*/1000/*'. Runs are straight/seed 0, "
    refused(message, "reproduce", "toy", "--only", "*/1000/*")
    assert not (tmp_path / "results").exists()


REGISTRATION = """
from tessera.papers.experiment import EXPERIMENTS

EXPERIMENTS.add("line_of_a_test", EXPERIMENT)
"""


@some("start", ["fork", "spawn"], by_default=["fork"])  # PyTorch and transformers take a new process ten seconds
def test_workers_import_what_the_command_imported_and_the_table_is_printed(capsys, tmp_path, monkeypatch, start):
    """One process in place of two."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "do_side_by_side", lambda job, runs, _, *rest: do_side_by_side(job, runs, 1, *rest))
    monkeypatch.setattr(EXPERIMENTS, "_entries", dict(EXPERIMENTS._entries))  # the plugin registers here too
    if start == "fork":
        prepare = runner._prepare

        def forget_and_prepare(*arguments):
            del sys.modules["plugin_of_a_test"], EXPERIMENTS._entries["line_of_a_test"]
            prepare(*arguments)

        monkeypatch.setattr(runner, "SPAWN", multiprocessing.get_context("fork"))
        monkeypatch.setattr(runner, "_prepare", forget_and_prepare)
    # The plugin is a copy, so that a worker can know it by its import alone.
    (tmp_path / "plugin_of_a_test.py").write_text(inspect.getsource(toy) + REGISTRATION)
    options = ["--models", "straight", "--seeds", "2", "--workers", "2", "--import", "plugin_of_a_test.py"]
    try:
        assert main(["reproduce", "line_of_a_test", *options]) == 0
    finally:
        sys.modules.pop("plugin_of_a_test", None)  # a module of this process until then
    out = capsys.readouterr().out
    assert ("| straight | " in out, "| steep | " in out) == (True, False)
    assert "written: results/line_of_a_test/cpu.json, .png and .md" in out


@pytest.mark.slow
def test_two_workers_and_a_kill(tmp_path):
    """Killed while it works, and called again with two processes: the records are those of one quiet process."""
    name, outcomes = "three_moons", []
    command = [sys.executable, "-m", "tessera.cli.main", "reproduce", name, "--budget", "smoke", "--workers"]
    for folder, workers in (("quiet", "1"), ("killed", "2")):
        place = tmp_path / folder  # checkpoints lie below the working folder: neither finds those of the other
        place.mkdir()
        if folder == "killed":
            kill_after_a_checkpoint([*command, workers], place)
        done = subprocess.run([*command, workers], cwd=place, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        stored = json.loads((place / "results" / name / "smoke.json").read_text())["runs"]
        outcomes.append({key: without_time(record["outcome"]) for key, record in stored.items()})
    assert set(outcomes[0]) == {run.key for run in EXPERIMENTS[name].runs(RunSelection("smoke"))}
    assert outcomes[0] == outcomes[1]


def kill_after_a_checkpoint(command, place):
    process = subprocess.Popen(command, cwd=place)
    while not list(place.glob("runs/reproduce/**/*.safetensors")):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()


def without_time(value):
    if isinstance(value, dict):
        return {key: without_time(item) for key, item in value.items() if "seconds" not in key}
    return value
