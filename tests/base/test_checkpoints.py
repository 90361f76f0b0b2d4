"""A checkpoint that is not whole is never taken for one."""

import pytest

from tessera.base.checkpoints import checkpoints, latest_complete, prune, publish, step_of, verify
from tessera.training.run_log import MetricsFile


@pytest.fixture
def run(tmp_path):
    for step in (5, 20, 100):
        draft = tmp_path / "checkpoints" / "draft.tmp"
        (draft / "deeper").mkdir(parents=True)
        (draft / "model.safetensors").write_bytes(b"weights" * step)
        (draft / "deeper" / "state.json").write_text("{}")
        publish(draft, tmp_path / "checkpoints" / f"checkpoint-{step}")
    return tmp_path


def test_the_latest_is_found_by_number(run):
    actual, passed = latest_complete(run)
    assert (actual.name, passed) == ("checkpoint-100", [])
    assert [path.name for path in checkpoints(run)] == ["checkpoint-100", "checkpoint-20", "checkpoint-5"]


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])


@pytest.mark.parametrize("harm", [truncate, flip, lambda path: path.unlink()])
@pytest.mark.parametrize("name", ["model.safetensors", "deeper/state.json", "complete.json"])
def test_damage_to_any_file_is_seen_and_passed_over(run, harm, name):
    latest = run / "checkpoints" / "checkpoint-100"
    harm(latest / name)
    assert verify(latest)
    actual, (line,) = latest_complete(run)
    assert actual.name == "checkpoint-20"
    assert "checkpoint-100: passed over" in line


def test_a_draft_is_no_checkpoint(run):
    draft = run / "checkpoints" / "draft.tmp" / "checkpoint-900"
    draft.mkdir(parents=True)
    (draft / "model.safetensors").write_bytes(b"half")
    assert latest_complete(run)[0].name == "checkpoint-100"


def test_publishing_replaces_a_damaged_checkpoint(run):
    truncate(run / "checkpoints" / "checkpoint-100" / "model.safetensors")
    draft = run / "checkpoints" / "draft.tmp"
    draft.mkdir()
    (draft / "model.safetensors").write_bytes(b"again")
    publish(draft, run / "checkpoints" / "checkpoint-100")
    assert verify(run / "checkpoints" / "checkpoint-100") is None


@pytest.mark.parametrize(("newest", "left"), [(100, [100, 20]), (20, [20, 5])])
def test_pruning_keeps_what_was_just_written(run, newest, left):
    """And the whole one before it: a damaged one of a later step, from which no run goes on, took the place of that."""
    prune(run / "checkpoints" / f"checkpoint-{newest}", 2)
    assert [step_of(path) for path in checkpoints(run)] == left


def test_metrics_are_cut_back_and_a_torn_line_is_dropped(tmp_path):
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    for step in (1, 2, 2, 3):
        metrics.append({"step": step, "loss": float("nan") if step == 3 else 0.1 * step})
    with open(metrics.path, "a") as file:
        file.write('{"step": 4, "lo')
    assert [record["step"] for record in metrics.read()] == [1, 2, 2, 3]
    assert metrics.read()[-1]["loss"] is None
    metrics.cut_after(2)
    metrics.append({"step": 3, "loss": 0.5})
    assert [(r["step"], r["loss"]) for r in metrics.read()] == [(1, 0.1), (2, 0.2), (2, 0.2), (3, 0.5)]
