"""`tessera sweep`: grids, the best of their runs, and from end to end: trained once, gone on with, shown."""

import json
import shutil

import pytest
import torch

from tessera.tools.sweep import BITS, NUMBERS, Sweep, best, grid, over_seeds
from tessera.tools.sweep import outcome as outcome_of
from tests.cli.conftest import OPTIONS
from tests.refusals import refused

GRID = ("training.learning_rate=1e-3,3e-2", "training.seed=0,1")
DIVERGING = [option for option in OPTIONS if not option.startswith(("training.steps", "training.warmup"))]
DIVERGING += ["training.clip=0", "training.warmup_steps=0"]


def test_a_grid_from_end_to_end(done, corpus, tmp_path):
    command = ("sweep", "tiny", f"data.source={corpus}", *OPTIONS, *GRID, "--output", tmp_path / "runs")
    out, err = done(*command)
    table = json.loads((tmp_path / "runs" / "sweep.json").read_text())
    losses = [run["validation_loss"] for run in table["runs"]]
    assert [run["values"] for run in table["runs"]] == [
        {"training.learning_rate": rate, "seed": seed} for rate in ("1e-3", "3e-2") for seed in ("0", "1")
    ]
    winner = losses.index(min(losses))
    assert table["best"] == table["runs"][winner]["folder"]
    assert table["shared"]["training.steps"] == "3"
    rows = out.splitlines()[1:5]
    assert [row.endswith("best") for row in rows] == [place == winner for place in range(4)]
    assert f"{losses[winner]:.4f}" in rows[winner]
    bits = [run["validation_bits_per_byte"] for run in table["runs"]]
    means = [sum(bits[:2]) / 2, sum(bits[2:]) / 2]
    assert [f"{mean:.4f} ±" in out for mean in means] == [True, True]
    assert out.partition("mean over seeds")[2].splitlines()[1].split() == ["bits/byte", "seeds"]
    assert "run 4 of 4: learning_rate=3e-2, seed=1" in err
    # Each folder is a run of its own, with its own rate and seed.
    for run in table["runs"]:
        result = json.loads((tmp_path / "runs" / run["folder"].split("/")[-1] / "run.json").read_text())
        settings = result["provenance"]["configuration"]
        assert settings["training"]["learning_rate"] == float(run["values"]["training.learning_rate"])
        assert settings["seed"] == int(run["values"]["seed"])
        made = ("commit", "hardware", "finished")
        assert [run[name] for name in made] == [result["provenance"][name] for name in made]
        assert run["hardware"]["processor"]
    # Called again, it trains what is missing alone.
    shutil.rmtree(table["runs"][1]["folder"])
    out, err = done(*command, "--json")
    assert [line for line in err.splitlines() if line.startswith("run ")] == ["run 2 of 4: learning_rate=1e-3, seed=1"]
    assert [run["validation_loss"] for run in json.loads(out)["runs"]] == losses


def test_a_run_that_diverges_is_a_row(done, tessera, corpus, tmp_path, monkeypatch):
    grid = (*DIVERGING, "training.steps=8", "training.learning_rate=1e-3,1e6")
    command = ("sweep", "tiny", f"data.source={corpus}", *grid, "--output", tmp_path / "runs")
    out, _ = done(*command)
    first, second = out.splitlines()[1:3]
    assert first.endswith("best")
    assert second.endswith("not finite")
    table = (tmp_path / "runs" / "sweep.json").read_text()
    assert json.loads(table)["runs"][1]["validation_loss"] is None
    # Called again, it was trained again from its last checkpoint, to the same end.
    assert done(*command) == (out, "")
    assert (tmp_path / "runs" / "sweep.json").read_text() == table
    shutil.rmtree(tmp_path / "runs" / "learning_rate=1e6")
    out_again, err = done(*command)
    assert (out_again, "run 2 of 2: learning_rate=1e6" in err) == (out, True)
    # Nor is that forgotten where a call is stopped before it comes to it.
    shutil.rmtree(tmp_path / "runs" / "learning_rate=1e-3")
    with monkeypatch.context() as patch:
        made = iter([outcome_of])
        patch.setattr("tessera.tools.sweep.outcome", lambda *of: next(made, _interrupted)(*of))
        assert tessera(*command)[0] == 130
    out_again, err = done(*command)
    assert (out_again, "run " in err) == (out, False)


def _interrupted(*_):
    raise KeyboardInterrupt


def test_a_run_that_its_last_step_breaks_is_a_row(done, tessera, corpus, tmp_path):
    """Its training loss was finite and its model published; the sweep ended in a traceback, whenever it was called."""
    command = ("tiny", f"data.source={corpus}", *DIVERGING, "training.steps=1")
    done("sweep", *command, "training.learning_rate=1e-3,1e6", "--output", tmp_path / "runs")
    broken = tmp_path / "runs" / "learning_rate=1e6"
    assert not (broken / "run.json").exists()
    message = "the validation loss at the end must be finite; got nan. Lower the learning rate"
    status, _, err = tessera("train", *command, "training.learning_rate=1e6", "--output", broken, "--resume")
    assert (status, message in err.splitlines()[-1]) == (2, True), err
    out, _ = done("sweep", *command, "training.learning_rate=1e-3,1e6", "--output", tmp_path / "runs")
    assert [line.endswith(end) for line, end in zip(out.splitlines()[1:3], ("best", "not finite"))] == [True, True]
    assert json.loads((tmp_path / "runs" / "sweep.json").read_text())["runs"][1]["validation_loss"] is None


def test_a_setting_that_diverges_from_a_seed_is_not_the_best(capsys):
    """The mean of the seeds that are left may be lower: it is of other runs."""
    from tessera.cli.sweep import _print

    losses = {("1e-3", "0"): 3.0, ("1e-3", "1"): 3.2, ("1", "0"): 2.0, ("1", "1"): None}
    numbers = dict.fromkeys(("validation_bits_per_byte", "validation_exact_match", "parameters", "tokens"))
    runs = [
        {"values": {"rate": rate, "seed": seed}, "validation_loss": loss, "problem": "" if loss else "NaN", **numbers}
        for (rate, seed), loss in losses.items()
    ]
    _print(runs)
    steady, diverged = capsys.readouterr().out.splitlines()[-2:]
    assert (steady.split()[0], steady.split()[-2:]) == ("rate=1e-3", ["2", "best"])
    assert (diverged.split()[0], diverged.split()[-1]) == ("rate=1", "1")


def test_questions_have_right_answers_and_no_bits(tessera, done, tmp_path, monkeypatch):
    def train(recipe, folder, resume):
        right = 0.25 if recipe.model["memory_dim"] == 8 else 0.5
        numbers = {"validation_loss": right, "validation_bits_per_byte": None, "validation_exact_match": right}
        folder.mkdir(parents=True)
        content = json.dumps({"result": {**numbers, "parameters": 5, "tokens": 7}})
        (folder / "run.json").write_text(content if recipe.seed < 2 else "[" * 100_000)

    monkeypatch.setattr("tessera.tools.sweep.train", train)
    command = ("sweep", "armt-babilong-qa1", "--output", tmp_path / "runs")
    out, _ = done(*command, "model.memory_dim=8,16", "seed=0,1")
    header, worse, _, better, _ = (line.split() for line in out.splitlines()[:5])
    assert header == ["nats/token", "of", "answers", "right", "parameters", "tokens"]
    assert worse[-4:] == ["0.2500", "0.2500", "5", "7"]
    assert better[-5:] == ["0.5000", "0.5000", "5", "7", "best"]
    heading, low, high = (line.split() for line in out.partition("mean over seeds")[2].splitlines()[1:4])
    assert (heading, low[1], low[-1]) == (["right", "seeds"], "0.2500", "2")
    assert (high[1], high[-2:]) == ("0.5000", ["2", "best"])
    status, _, err = tessera(*command, "seed=2")
    assert status == 2
    assert "cannot be read as a run's result (RecursionError" in err.splitlines()[-1]


def test_a_run_without_memory_is_a_row_and_the_next_begins(done, tmp_path, monkeypatch):
    """It ended the sweep, and did so again whenever that went on."""

    def train(recipe, folder, resume):
        folder.mkdir(parents=True, exist_ok=True)
        if recipe.training.batch_size == 64:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 80 GiB.")
        numbers = {"validation_loss": 1.0, "validation_bits_per_byte": 1.0, "parameters": 5, "tokens": 7}
        (folder / "run.json").write_text(json.dumps({"result": numbers}))

    monkeypatch.setattr("tessera.tools.sweep.train", train)
    out, _ = done("sweep", "tiny", "--output", tmp_path / "runs", "training.batch_size=64,32")
    assert [line.split()[-1] for line in out.splitlines()[1:3]] == ["memory", "best"]
    table = json.loads((tmp_path / "runs" / "sweep.json").read_text())
    assert table["runs"][0]["problem"].startswith("out of memory: CUDA out of memory. Tried")
    monkeypatch.setattr("tessera.tools.sweep.equals_saved", lambda path, recipe: path.parent.is_dir())
    _, err = done("sweep", "tiny", "--output", tmp_path / "runs", "training.batch_size=64,32")
    assert err == "run 1 of 2: batch_size=64\n"  # there may be more by now


def test_runs_of_a_text_that_has_changed_are_not_compared_with_new_ones(tessera, corpus, tmp_path):
    text = tmp_path / "text.txt"
    shutil.copy(corpus, text)
    command = ("sweep", "--output", tmp_path / "runs", "tiny", f"data.source={text}", *OPTIONS)
    assert tessera(*command, "seed=0,1")[0] == 0
    text.write_text(text.read_text().upper())
    status, _, err = tessera(*command, "seed=0,1,2")
    assert status == 2
    assert "the training text must be the one the run began with" in err


def test_another_sweep_in_the_same_folder_is_refused(tessera, corpus, tmp_path):
    command = ("sweep", "--output", tmp_path / "runs", "tiny", f"data.source={corpus}", *OPTIONS)
    assert tessera(*command, "seed=0")[0] == 0
    status, _, err = tessera(*command, "seed=0", "training.weight_decay=0.2")
    assert status == 2
    assert "training.weight_decay is 0.1 there and 0.2 here" in err


def outcome(loss, right=None, **values):
    numbers = dict.fromkeys(NUMBERS) | {"validation_loss": loss, "validation_exact_match": right}
    return {"values": {name: str(value) for name, value in values.items()}, "folder": "folder", **numbers}


def test_every_combination_once_and_the_last_key_varies_fastest():
    points = grid(["training.steps=10", "training.learning_rate=1e-3,3e-3", "seed=0,1"])
    assert [point.overrides for point in points] == [
        ("training.steps=10", f"training.learning_rate={rate}", f"seed={seed}")
        for rate in ("1e-3", "3e-3")
        for seed in (0, 1)
    ]
    assert points[2].values == (("training.learning_rate", "3e-3"), ("seed", "0"))
    assert points[2].label == "learning_rate=3e-3, seed=0"
    assert len({point.folder for point in points}) == 4


def test_commas_in_brackets_and_quotes_divide_nothing():
    points = grid(["model.kernel=biweight,{name: knn, k: 32}", "data.source=[a.txt, b.txt]", "name='x, y'"])
    assert [point.overrides[0] for point in points] == ["model.kernel=biweight", "model.kernel={name: knn, k: 32}"]
    assert points[0].overrides[1:] == ("data.source=[a.txt, b.txt]", "name='x, y'")
    assert len(points[1].values) == 1


def test_folders_are_plain_names_and_differ_where_labels_do():
    points = grid(["model.kernel={name: knn, k: 32},{name: knn, k; 32},../x"])
    folders = [point.folder for point in points]
    assert len(set(folders)) == 3
    for folder in folders:
        assert not set(folder) & set("/\\ {}:;")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["seed"], "'seed' must be key=value"),
        (["=1"], "'=1' must be key=value"),
        (["seed=0,0"], "seed must list different values; got '0,0'"),
        (["seed=0,,1"], "seed must list different values"),
        (["seed=0,"], "seed must list different values; got '0,'"),
        (["seed=0", "seed=1"], "seed must be given once"),
    ],
)
def test_mistakes(overrides, message):
    refused(message, grid, overrides)


def test_a_mistake_in_the_last_run_is_told_before_the_first_begins(tmp_path):
    refused("steps", Sweep.read, "tiny", ["training.steps=3,none"], tmp_path)
    assert not list(tmp_path.iterdir())


def test_values_that_are_equal_are_one_run(tmp_path):
    """Written in two ways they were trained twice, in two folders."""
    varied = ["training.learning_rate=1e-3,0.001,3e-3", "model.num_layers=2,02"]
    sweep = Sweep.read("tiny", varied, tmp_path)
    assert [point.label for point in sweep.points] == [
        f"learning_rate={rate}, num_layers=2" for rate in ("1e-3", "3e-3")
    ]
    assert [recipe.training.learning_rate for recipe in sweep.recipes] == [1e-3, 3e-3]


def test_the_best_is_the_lowest_loss_of_those_that_ended():
    assert best([outcome(2.0), outcome(None), outcome(1.5), outcome(1.6)]) == 2
    assert best([outcome(None)]) is None


def test_runs_of_different_tokenizers_are_compared_by_their_bits():
    """A token of more text costs more nats."""
    runs = [{**outcome(2.0, tokens=1), BITS: 2.9}, {**outcome(4.0, tokens=2), BITS: 2.5}]
    assert best(runs) == 1
    assert over_seeds(runs) == [({"tokens": "1"}, [2.9]), ({"tokens": "2"}, [2.5])]


def test_right_answers_decide_before_the_loss():
    runs = [outcome(1.0, 0.5, seed=0), outcome(2.0, 0.75, seed=1), outcome(1.5, 0.75, seed=2)]
    assert best(runs) == 2
    assert over_seeds(runs) == [({}, [0.5, 0.75, 0.75])]


def test_losses_are_grouped_over_seeds_alone():
    runs = [outcome(4.0, rate=1, seed=0), outcome(2.0, rate=1, seed=1), outcome(1.0, rate=2, seed=0)]
    runs.append(outcome(None, rate=2, seed=1))
    assert over_seeds(runs) == [({"rate": "1"}, [4.0, 2.0]), ({"rate": "2"}, [1.0])]
