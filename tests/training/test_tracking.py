"""Metrics reach TensorBoard's event files; a package that is missing is one line before anything is written."""

import json
import os
import sys
from types import SimpleNamespace

import pytest

from tessera.base.files import remove
from tessera.recipes.recipe import read_recipe
from tessera.training.run import train
from tests.refusals import refused

tensorboard = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
SummaryWriter = pytest.importorskip("torch.utils.tensorboard").SummaryWriter


@pytest.fixture
def go(recipe_file, tmp_path, monkeypatch):
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)

    def start(*overrides, reporter="tensorboard", **options):
        recipe = read_recipe(recipe_file, [f"training.report_to=[{reporter}]", *overrides])
        return train(recipe, tmp_path / "run", progress=False, **options)

    return start


def scalars(folder, tag):
    """{step: value} of a curve as TensorBoard shows it, which must have no step twice."""
    events = tensorboard.EventAccumulator(str(folder))
    events.Reload()
    curve = {event.step: event.value for event in events.Scalars(tag)}
    assert len(curve) == len(events.Scalars(tag))
    return curve


def records(folder, key):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line[key] for line in lines if key in line}


def test_event_files_hold_what_the_metrics_hold(go, tmp_path):
    go()
    run = tmp_path / "run"
    for tag, key in (("train/loss", "loss"), ("eval/loss", "validation_loss"), ("train/tokens", "tokens")):
        assert scalars(run / "tensorboard", tag) == pytest.approx(records(run, key))
    assert len(records(run, "loss")) == 6


def test_a_resumed_run_is_one_curve_and_a_replaced_one_leaves_none(go, tmp_path):
    go()
    run = tmp_path / "run"
    remove(run / "checkpoints" / "checkpoint-6")  # steps 5 and 6 are done again
    go(resume=True)
    assert scalars(run / "tensorboard", "train/loss") == pytest.approx(records(run, "loss"))
    go("training.steps=2", overwrite=True)
    assert scalars(run / "tensorboard", "train/loss") == pytest.approx(records(run, "loss"))
    assert len(os.listdir(run / "tensorboard")) == 1


def test_a_missing_package_is_one_line_before_anything_is_written(go, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    refused(r"^training\.report_to: wandb must be .* pip install wandb.*\.$", go, reporter="wandb")
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "stores").exists()


@pytest.mark.parametrize("reporter", ["comet", "wandb, wandb"])
def test_other_names_are_refused(go, reporter):
    refused("training.report_to must list tensorboard, wandb", go, reporter=reporter)


@pytest.mark.parametrize("fails", ["model", "second tracker"])
def test_trackers_are_closed_after_a_start_that_failed(go, tmp_path, monkeypatch, fails):
    closed = []
    fake = SimpleNamespace(log=lambda values, step: None, finish=lambda: closed.append("wandb"))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda name, config: fake))
    if fails == "model":
        monkeypatch.setattr("tessera.training.run._prepare", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            go(reporter="wandb")
    else:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "file"))
        refused("file: event files cannot be written", go, reporter="wandb, tensorboard")
    assert closed == ["wandb"]


@pytest.mark.parametrize("fails", ["log", "finish", "log and finish"])
def test_a_tracker_that_fails_costs_neither_the_run_nor_the_others(go, tmp_path, monkeypatch, heard, fails):
    def failing(*arguments, **keywords):
        calls.append("log" if arguments else "finish")
        if calls[-1] in fails:
            raise ConnectionError("no network\nat all.")

    calls = []
    fake = SimpleNamespace(log=failing, finish=failing)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda name, config: fake))
    closed = []
    close = SummaryWriter.close
    monkeypatch.setattr(SummaryWriter, "close", lambda self: closed.append(self) or close(self))
    assert go(reporter="wandb, tensorboard").steps == 6
    assert len(closed) == 1
    assert calls.count("finish") == 1
    assert fails == "finish" or calls == ["log", "finish"]
    assert scalars(tmp_path / "run" / "tensorboard", "train/loss") == pytest.approx(records(tmp_path / "run", "loss"))
    (said,) = [record.getMessage() for record in heard.records if "report_to" in record.getMessage()]
    assert said.startswith("training.report_to: wandb failed (no network) and gets nothing more.")


def test_a_tracker_that_cannot_start_is_one_line(go, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda name, config: {}["api_key"]))
    refused(r"^training\.report_to: wandb cannot start \('api_key'\)\. Set WANDB_MODE", go, reporter="wandb")


def test_weights_and_biases_hears_the_same(go, tmp_path, monkeypatch):
    heard, settings, ended = {}, [], []
    fake = SimpleNamespace(
        log=lambda values, step: heard.setdefault(step, {}).update(values), finish=lambda: ended.append(True)
    )
    pretended = SimpleNamespace(init=lambda name, config: settings.append(config) or fake)
    monkeypatch.setitem(sys.modules, "wandb", pretended)
    go(reporter="wandb")
    assert (len(ended), settings[0]["training"]["steps"]) == (1, 6)
    assert {step: values["train/loss"] for step, values in heard.items()} == records(tmp_path / "run", "loss")
    assert heard[6]["eval/loss"] == records(tmp_path / "run", "validation_loss")[6]
