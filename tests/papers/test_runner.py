"""Runs are done once, kept through failures and kills, and shown; one run's folder, time, seed and progress."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tessera.base.dataclass_io import to_json
from tessera.papers import runner
from tessera.papers.experiment import EXPERIMENTS, LIBRARY, Catalogue, Run, RunSelection
from tessera.papers.runner import Bar, Job, Progress, reproduce
from tessera.training.fit import FitOptions
from tests.papers import toy as module
from tests.refusals import refused, refused_in_a_line


@pytest.fixture
def toy(monkeypatch):
    """What was executed, what is to fail, and `change(field=value)` of the experiment."""
    monkeypatch.setattr(module, "EXECUTED", [])
    monkeypatch.setattr(module, "FAILING", set())

    def change(plot=lambda records, path: path.touch(), **fields):  # a real figure takes a quarter of a second
        monkeypatch.setitem(EXPERIMENTS._entries, "toy", replace(module.EXPERIMENT, plot=plot, **fields))

    def steps(count):
        monkeypatch.setitem(module.BUDGETS, "cpu", module.ToySettings(FitOptions(count, 0.1)))

    change()
    return SimpleNamespace(executed=module.EXECUTED, failing=module.FAILING, change=change, steps=steps)


@pytest.fixture
def go(toy, tmp_path):
    def call(budget="cpu", only=None, **selection):
        places = {"output": tmp_path / "results", "checkpoints": tmp_path / "runs"}
        return reproduce("toy", RunSelection(budget, **selection), workers=1, only=only, **places)

    return call


def test_it_writes_records_figure_and_table(go, toy, tmp_path):
    toy.change(module.plot)
    table = go()
    stored = json.loads((tmp_path / "results/toy/cpu.json").read_text())
    assert sorted(stored["runs"]) == ["steep/seed 0", "steep/seed 1", "straight/seed 0", "straight/seed 1"]
    record = stored["runs"]["steep/seed 1"]
    assert record["configuration"] == to_json(module.ToySettings(FitOptions(5, 0.1), "steep", 1))
    assert record["outcome"]["steps"] == 5
    assert record["provenance"]["seed"] == 1
    assert {"versions", "hardware", "wall_seconds", "command"} <= record["provenance"].keys()
    assert (tmp_path / "results/toy/cpu.png").read_bytes().startswith(b"\x89PNG")
    assert "| steep | " in table.read_text()
    assert "`tessera reproduce toy --budget cpu`" in table.read_text()
    assert not list((tmp_path / "results/toy").glob("*.tmp*"))


@pytest.mark.parametrize(("every", "times"), [(1000.0, 1), (-1.0, 5)])
def test_quick_runs_are_drawn_together(go, toy, monkeypatch, every, times):
    drawn = []
    toy.change(lambda records, path: drawn.append(len(records)) or path.touch())
    monkeypatch.setattr(runner, "DRAWN_EVERY", every)
    go()
    assert drawn == [1, 2, 3, 4, 4][-times:]


def test_a_changed_configuration_is_done_again_and_the_others_stay(go, toy, tmp_path):
    go()
    toy.steps(6)
    go(models=("steep",), seeds=1)
    assert toy.executed[4:] == ["steep/seed 0"]
    stored = json.loads((tmp_path / "results/toy/cpu.json").read_text())["runs"]
    assert {key: run["outcome"]["steps"] for key, run in stored.items()} == {
        "steep/seed 0": 6, "steep/seed 1": 5, "straight/seed 0": 5, "straight/seed 1": 5,
    }  # fmt: skip


def test_a_failure_keeps_what_is_done(go, toy, tmp_path):
    toy.failing.add("steep/seed 0")
    refused("steep/seed 0: failed", go)
    assert list(json.loads((tmp_path / "results/toy/cpu.json").read_text())["runs"]) == ["straight/seed 0"]
    assert "| straight | " in (tmp_path / "results/toy/cpu.md").read_text()
    toy.failing.clear()
    go()
    assert toy.executed == ["straight/seed 0", "steep/seed 0", "steep/seed 0", "straight/seed 1", "steep/seed 1"]


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"budget": "large"}, "reproduce: --budget must be one of smoke, cpu; got large."),
        ({"models": ("stepe",)}, "unknown model 'stepe'. Did you mean 'steep'?"),
        ({"kernels": ("gaussian",)}, "--kernels must be left out: there is no such choice; got gaussian."),
        ({"data": ("a=b",)}, "--data must be left out: it makes its own examples"),
        ({"seeds": 0}, "--seeds must lie in [1, 10,000]; got 0."),
    ],
)
def test_refusals(go, toy, selection, message):
    refused_in_a_line(message, go, **selection)
    assert not toy.executed


def test_kernels_are_chosen_for_models_that_have_some():
    """They were ignored without a word."""
    choose = {"models": ("transformer",), "kernels": ("biweight",)}
    for name in ("length_generalization", "regbench", "language_modeling"):
        runs = EXPERIMENTS[name].runs
        refused("--kernels must be left out, or --models name one of mosaic", runs, RunSelection("cpu", **choose))
        assert runs(RunSelection("cpu", **choose | {"models": ("mosaic",)}))


def test_the_librarys_names_are_taken_although_nothing_is_imported():
    catalogue = Catalogue(LIBRARY)
    refused("'induction' is already registered", catalogue.add, "induction", module.EXPERIMENT)
    assert catalogue.add("mine", module.EXPERIMENT) is catalogue["mine"]
    assert [*catalogue] == [*LIBRARY, "mine"]
    assert catalogue.about()["mine"].title == "A line"


def test_unknown_experiment():
    refused("unknown experiment 'regbnech'", reproduce, "regbnech", RunSelection("smoke"))


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"header": {"format": 0}, "runs": {}}', '{"runs": {}}', '{"header": {}, "runs": {"a": 1}}']
)
def test_results_of_another_version_are_kept(go, toy, tmp_path, text):
    path = tmp_path / "results/toy/cpu.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    refused(r"cpu\.json: must be .* Move it away, or choose another --output\.", go)
    assert path.read_text() == text
    assert not toy.executed


def test_a_version_of_the_experiment_separates_results(go, toy):
    go()
    toy.change(version=2)
    refused("'version': 2", go)


def test_an_output_that_is_a_file_is_told_before_anything_is_trained(go, toy, tmp_path):
    (tmp_path / "results").write_text("mine")
    got = re.escape(f"got {tmp_path / 'results' / 'toy'} (Not a directory).")
    refused(f"^reproduce: --output must be a folder that can be written; {got}$", go)
    assert not toy.executed
    assert (tmp_path / "results").read_text() == "mine"


def test_the_table_says_which_of_the_runs_it_has(go, toy):
    def runs(table):
        return table.read_text().split("## Runs")[1].split("\n")[4].split(" | ")[:2]

    assert runs(go(only="steep/seed 1")) == ["| 1 of 4", "0"]
    assert runs(go()) == ["| 4 of 4", "0"]
    assert runs(go(seeds=3)) == ["| 4 of 4", "2"]
    toy.steps(6)
    assert runs(go(only="steep/seed 1")) == ["| 1 of 4", "5"]


def test_a_record_of_other_settings_is_told_and_kept(go, toy, tmp_path):
    go(only="steep/seed 1")
    path = tmp_path / "results/toy/cpu.json"
    text = path.read_text().replace('"model": "steep"', '"modle": "steep"')
    path.write_text(text)
    refused_in_a_line("steep/seed 1: modle is not a known key; got 'steep'. Did you mean 'model'", go)
    assert path.read_text() == text


def passing(run, context):
    context.report(0.5, "half")
    return {"loss": float("nan"), "curve": (1.0, float("inf"))}


@pytest.fixture
def job(toy, tmp_path):
    toy.change(execute=passing)
    return Job("toy", tmp_path)


def run_of(seed=0):
    return Run("a run", module.ToySettings(FitOptions(2, 0.1), seed=seed))


def test_time_counts_over_interruptions(job):
    """The record of a resumed run has the time of all its attempts."""
    job.folder(run_of()).mkdir()
    Progress(0.9, "", 1000.0).write(job.folder(run_of()))
    record = job.do(run_of())
    assert 1000.0 <= record.provenance["wall_seconds"] < 1060.0
    assert Progress.read(job.folder(run_of())).seconds >= 1000.0


def test_numbers_that_are_not_finite_are_stored_as_null(job):
    """JSON has no other word for them, and a record that cannot be written is a training lost."""
    assert job.do(run_of()).outcome == {"loss": None, "curve": [1.0, None]}


def test_checkpoints_of_another_version_are_not_gone_on_with(job, toy):
    first = job.folder(run_of())
    assert first != job.folder(run_of(1))
    toy.change(version=2)
    assert job.folder(run_of()) != first


def test_a_run_does_not_depend_on_what_the_process_did_before(job, toy):
    toy.change(execute=lambda run, context: {"draw": torch.rand(()).item()})
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(drawn))
        drawn.append(job.do(run_of(seed)).outcome["draw"])
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_run_leaves_the_processs_random_numbers_alone(job, toy):
    toy.change(execute=lambda run, context: {"draw": torch.rand(()).item()})
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    job.do(run_of())
    assert torch.equal(torch.rand(3), expected)


RUNS = [Run("first", {}, cost=1.0), Run("second", {}, cost=3.0)]


def test_a_folder_without_or_with_half_a_file_has_none(tmp_path):
    assert Progress.read(tmp_path) == Progress(0.0, "", 0.0)
    Progress(0.5, "loss 1.2", 7.0).write(tmp_path)
    assert Progress.read(tmp_path) == Progress(0.5, "loss 1.2", 7.0)
    (tmp_path / runner.PROGRESS).write_text('{"share": 0.')
    assert Progress.read(tmp_path) == Progress()


def test_into_a_file_it_is_a_line_a_minute(capsys, monkeypatch):
    seconds = [0.0]
    monkeypatch.setattr(runner.time, "monotonic", lambda: seconds[0])
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
