"""`tessera compare`: runs that have ended and runs that have not, as a table, as JSON and as a figure."""

import json
import shutil

import pytest


@pytest.fixture
def runs(run_folder, tmp_path):
    """Folders of a finished run, of one that was stopped after its second step, and of one before its first."""
    stopped, fresh = tmp_path / "stopped", tmp_path / "fresh"
    shutil.copytree(run_folder, stopped)
    lines = (stopped / "metrics.jsonl").read_text().splitlines()
    validations = [{"step": 1, "validation_loss": 2.5, "validation_bits_per_byte": 3.5}]
    validations += [{"step": 2, "validation_loss": 4.5, "validation_bits_per_byte": 5.5}]
    kept = [line for line in lines if json.loads(line)["step"] < 3] + list(map(json.dumps, validations))
    (stopped / "metrics.jsonl").write_text("\n".join(kept) + "\n")
    for name in ("run.json", "model.safetensors", "config.json"):
        (stopped / name).unlink()
    fresh.mkdir()
    for name in ("recipe.yaml", "run.lock"):
        shutil.copy(run_folder / name, fresh)
    return run_folder, stopped, fresh


def test_table_figure_and_json_show_each_run(tessera, done, runs, tmp_path):
    figure = tmp_path / "runs.svg"
    out, _ = done("compare", *runs, "--plot", figure)
    for folder in runs[:2]:  # the third has no losses
        assert f"<!-- {folder.name}, validation" in figure.read_text()
    summary = json.loads((runs[0] / "run.json").read_text())["result"]
    heading, finished, stopped, fresh = (line.split() for line in out.splitlines())
    assert heading[:3] == ["parameters", "steps", "tokens"]
    loss = f"{summary['validation_loss']:.4f}"
    assert finished[:6] == [runs[0].name, f"{summary['parameters']:,}", "3/3", f"{summary['tokens']:,}", loss, loss]
    assert finished[6] == f"{summary['validation_bits_per_byte']:.4f}"
    assert stopped[:3] == ["stopped", f"{summary['parameters']:,}", "2/3"]
    assert stopped[4:7] == ["4.5000", "2.5000", "3.5000"]
    assert fresh == ["fresh", "-", "0/3", "0", "-", "-", "-", "-"]
    finished, stopped, fresh = json.loads(tessera("compare", *runs, "--json")[1])
    for key in ("parameters", "tokens", "tokens_per_second"):
        assert finished[key] == summary[key]
    assert (stopped["last_validation_loss"], stopped["best_validation_loss"]) == (4.5, 2.5)
    assert fresh["best_validation_loss"] is None


def test_the_best_loss_is_of_the_last_stage(tessera, runs):
    """Losses of an earlier stage are of other texts, and the weights in the folder are not of it."""
    stopped = runs[1]
    losses = [(1, 0.5), (1, 0.4), (2, 3.0), (2, 2.0), (2, 2.5)]
    records = [
        {"step": step, "stage": stage, "validation_loss": loss, "validation_bits_per_byte": 2 * loss}
        for step, (stage, loss) in enumerate(losses)
    ]
    (stopped / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
    (state,) = json.loads(tessera("compare", stopped, "--json")[1])
    assert (state["last_validation_loss"], state["best_validation_loss"], state["best_bits_per_byte"]) == (2.5, 2, 4)


def test_a_run_on_questions_shows_its_right_answers(tessera, runs):
    """The largest share in the last stage; runs on text have none beside it, and no column alone."""
    stages = [(1, 0.9), (2, 0.25), (2, 0.75), (2, 0.5)]
    records = [
        {"step": step, "stage": stage, "validation_loss": 2.0 - share, "validation_exact_match": share}
        for step, (stage, share) in enumerate(stages)
    ]
    (runs[1] / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)) + "\n")
    lines = tessera("compare", *runs)[1].splitlines()
    assert [line.split()[-1] for line in lines] == ["right", "-", "0.7500", "-"]
    assert "right" not in tessera("compare", runs[0])[1]
    assert json.loads(tessera("compare", runs[1], "--json")[1])[0]["best_exact_match"] == 0.75


def test_a_loss_that_is_not_finite_is_not_the_last_one_that_was(tessera, runs, tmp_path):
    metrics = runs[1] / "metrics.jsonl"
    spoiled = json.dumps({"step": 3, "validation_loss": None, "validation_bits_per_byte": None})
    metrics.write_text(f"{spoiled}\n{metrics.read_text()}{spoiled}\n")
    status, out, _ = tessera("compare", runs[1], "--plot", tmp_path / "curves.png")
    assert (status, out.splitlines()[1].split()[4:7]) == (0, ["nan", "2.5000", "3.5000"])
    (state,) = json.loads(tessera("compare", runs[1], "--json")[1])
    assert (state["last_validation_loss"], state["best_validation_loss"]) == (None, 2.5)


def test_a_sweep_is_its_runs(tessera, runs, tmp_path):
    for name in ("b", "a"):
        shutil.copytree(runs[0], tmp_path / "sweep" / name)
    (tmp_path / "sweep" / "stores").mkdir()
    (tmp_path / "sweep" / "sweep.json").write_text("{}")
    status, out, _ = tessera("compare", tmp_path / "sweep", runs[1])
    assert (status, [line.split()[0] for line in out.splitlines()[1:]]) == (0, ["a", "b", "stopped"])


def test_runs_with_long_names_are_called_by_what_their_sweep_varied(tessera, runs, tmp_path):
    kernels = ("{name: knn, k: 4}", "gaussian")
    folders = [tmp_path / "sweep" / f"{'_'.join(kernel)}_{'long' * 9}" for kernel in kernels]
    for folder in folders:
        shutil.copytree(runs[0], folder)
    described = [
        {"folder": f"elsewhere/{folder.name}", "values": {"model.kernel": kernel, "seed": "1"}}
        for folder, kernel in zip(folders, kernels)
    ]
    for table in ({"runs": described}, {"runs": [None]}):
        (tmp_path / "sweep" / "sweep.json").write_text(json.dumps(table))
        status, out, _ = tessera("compare", *folders)
        named = [line.partition("  ")[0] for line in out.splitlines()[1:]]
        assert status == 0
        assert (named == [f"kernel={kernel}, seed=1" for kernel in kernels]) == (table["runs"] is described)


def test_what_is_no_run_is_one_line(tessera, runs, tmp_path):
    shutil.copytree(runs[0], tmp_path / "other" / "below")  # in no sweep
    (tmp_path / "other" / "recipe.yaml").write_text("name: mine\n")
    for folder, what in ((tmp_path / "missing", "no such folder"), (tmp_path / "other", "other files")):
        status, out, err = tessera("compare", runs[0], folder, "--plot", tmp_path / "loss.png")
        assert (status, len(out.splitlines())) == (2, 2), "the heading, and the run that is one"
        assert err == f"compare: {folder} must be the folder of a run, as tessera train writes it; got {what}.\n"
    assert (tmp_path / "loss.png").exists()
    status, out, err = tessera("compare", tmp_path / "missing", tmp_path / "other")
    assert (status, out, err.count("\n")) == (2, "", 2)
    status, _, err = tessera("compare", runs[2], "--plot", tmp_path / "none.png")
    assert (status, "--plot must have a run with losses" in err) == (2, True)
    assert not (tmp_path / "none.png").exists()
