"""RegBench's runs, batches and table; and its smoke budget, end to end."""

import json

import pytest
import torch

from tessera.errors import TesseraError
from tessera.experiments.experiment import EXPERIMENTS, Record, RunContext, RunSelection
from tessera.experiments.regbench.batches import Batches, mean_loss, scores_of
from tessera.experiments.regbench.experiment import RegBenchExperiment
from tessera.experiments.regbench.figure import draw
from tessera.experiments.regbench.plan import KERNELS
from tessera.experiments.regbench.published import IN_DISTRIBUTION_100, SPARSE_SIZES, SPARSE_TABLE_1
from tessera.experiments.regbench.summary import best_records, cell, points
from tessera.experiments.regbench.table import table
from tessera.tasks.regbench import RegBench

EXPERIMENT: RegBenchExperiment = EXPERIMENTS["regbench"]
SMALL = RegBench.variants()[1]


class Uniform:
    """A model that predicts every token alike, with the loss that this has."""

    device = "cpu"

    def __call__(self, input_ids, labels=None):
        class Output:
            logits = torch.zeros(*input_ids.shape, SMALL.vocab_size)
            loss = torch.tensor(float(SMALL.vocab_size)).log()

        return Output


def test_an_epoch_takes_every_problem_once_and_the_step_decides():
    examples = SMALL.sample(21, 0)
    batches = Batches(examples, 4, seed=5)
    assert batches.per_epoch == 5
    rows = {tuple(row.tolist()): index for index, row in enumerate(examples.tokens)}
    width = examples.tokens.shape[1]
    orders = []
    for epoch in range(2):
        seen = []
        for step in range(epoch * 5, epoch * 5 + 5):
            ids, labels = batches.at(step).values()
            assert ((labels == ids) | (labels == -100)).all()
            assert (ids[:, -1] != SMALL.padding).any()
            filled = torch.nn.functional.pad(ids, (0, width - ids.shape[1]), value=SMALL.padding)
            seen += [rows[tuple(row.tolist())] for row in filled]
        assert len(set(seen)) == 20
        orders.append(seen)
    assert orders[0] != orders[1]
    again = Batches(examples, 4, seed=5)
    for step in (7, 2, 9):
        assert torch.equal(again.at(step)["input_ids"], batches.at(step)["input_ids"])
    assert not all(torch.equal(Batches(examples, 4, 6).at(0)[k], batches.at(0)[k]) for k in ("input_ids", "labels"))


def test_batches_hold_problems_of_similar_length():
    examples = RegBench().sample(64, 0)
    batches = Batches(examples, 8, 0)
    read = sum(batches.at(step)["input_ids"].numel() for step in range(8))
    assert read < 1.2 * int(examples.details.lengths.sum())


def test_scores_come_back_in_the_order_of_the_examples():
    examples = SMALL.sample(21, 0)
    found = scores_of(Uniform(), SMALL, examples, size=4)
    expected = SMALL.scores(Uniform()(examples.tokens).logits, examples)
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values)
    assert mean_loss(Uniform(), examples) == pytest.approx(float(torch.tensor(10.0).log()))


def test_the_most_telling_runs_come_first():
    runs = EXPERIMENT.runs(RunSelection("cpu"))
    assert len({run.key for run in runs}) == 4 + 18 + 36 + 1
    yardsticks, short, longer = runs[:4], runs[4:22], [run.configuration for run in runs[22:58]]
    assert runs[58].key == "transformer, 16 epochs/2500/seed 0"
    assert [run.configuration["symbols"] for run in yardsticks] == [0, 1, 2, 3]
    assert {run.configuration["model"] for run in yardsticks} == {"counting"}
    assert {(run.configuration["problems"], run.configuration["fit"]["steps"]) for run in short} == {(1000, 500)}
    assert [run.configuration["seed"] for run in short] == [0] * 9 + [1] * 9
    assert [(one["problems"], one["seed"]) for one in longer[::9]] == [(1000, 0), (2500, 0), (1000, 1), (2500, 1)]
    assert {one["fit"]["steps"] for one in longer} == {4000, 3750}
    for first in range(0, 36, 9):
        assert [one["kernel"] for one in longer[first : first + 9]] == [*KERNELS, ""]


def test_full_is_the_published_search():
    runs = {run.key: run.configuration for run in EXPERIMENT.runs(RunSelection("full"))}
    grid = [one for one in runs.values() if one["model"] == "mosaic" and one["problems"] == 1000]
    assert len([one for one in grid if one["kernel"] == "gaussian"]) == 2 * 3 * 3 * 4
    other = next(one for one in grid if one["kernel"] == "biweight")
    shape = ("num_layers", "num_heads", "hidden_size", "weight_decay", "batch_size", "epochs", "learning_rate")
    assert tuple(other[name] for name in shape) == (2, 8, 128, 0.01, 32, 200, 5e-4)
    assert other["fit"]["steps"] == 200 * 31
    assert {one["problems"] for one in runs.values()} == {0, 100, 1000, 2500, 5000, 10000, 20000, 40000}


def test_choices_are_obeyed_or_refused():
    runs = EXPERIMENT.runs(RunSelection("cpu", ("mosaic_v2", "lstm"), ("biweight",), 1))
    assert [run.key for run in runs] == [
        "mosaic_v2 biweight/1000/seed 0", "lstm/1000/seed 0",
        "mosaic_v2 biweight, 8 epochs/1000/seed 0", "lstm, 8 epochs/1000/seed 0",
        "mosaic_v2 biweight, 3 epochs/2500/seed 0", "lstm, 3 epochs/2500/seed 0",
    ]  # fmt: skip
    with pytest.raises(TesseraError, match="unknown model 'gru'"):
        EXPERIMENT.runs(RunSelection("cpu", ("gru",)))
    with pytest.raises(TesseraError, match="Did you mean 'biweight'"):
        EXPERIMENT.runs(RunSelection("cpu", kernels=("biwight",)))


def test_a_run_trains_and_scores(tmp_path):
    records = {}
    for run in EXPERIMENT.runs(RunSelection("smoke", models=("mosaic", "transformer", "counting"))):
        json.dumps(run.configuration, allow_nan=False)
        outcome = EXPERIMENT.execute(run, RunContext(tmp_path / run.key.replace("/", "_")))
        assert json.loads(json.dumps(outcome, allow_nan=False)) == {
            **outcome, "training": json.loads(json.dumps(outcome["training"]))
        }  # fmt: skip
        trained = run.configuration["model"] != "counting"
        assert outcome["training"]["steps"] == trained * run.configuration["fit"]["steps"]
        assert outcome["held_out"]["accuracy"]["count"] == 4
        records[run.key] = Record(run.configuration, outcome, {})
    found = [one.outcome["held_out"]["accuracy"]["mean"] for one in records.values() if "symbols" in one.configuration]
    assert len(found) == 4
    assert found[0] < found[1] < found[2]
    assert "| Gaussian |" in table(records)
    assert "| Transformer |" in table(records)
    assert "### Without training" in table(records)


def record(kernel, seed, accuracy, best=1.0, problems=1000):
    run = next(
        r for r in EXPERIMENT.runs(RunSelection("cpu", ("mosaic",), (kernel,), seed + 1)) if f"seed {seed}" in r.key
    )
    scores = {
        name: {"mean": value, "standard_error": 0.3, "count": 500}
        for name, value in {"accuracy": accuracy, "tvd": 20.0, "last_accuracy": 97.0}.items()
    }
    outcome = {"training": {"best": best}, "epochs": 4.0, "held_out": scores, "in_distribution": scores}
    return Record({**run.configuration, "problems": problems}, outcome, {})


def test_the_table_sets_the_papers_beside_ours_and_counts_what_is_near():
    runs = {"a": record("gaussian", 0, 93.0), "b": record("gaussian", 1, 94.0), "c": record("uniform_knn", 0, 80.0)}
    one = cell(best_records(runs)["mosaic gaussian", 1000], "held_out", "accuracy")
    assert one == (93.5, pytest.approx(0.5), pytest.approx(0.3))
    text = table(runs)
    assert "| Gaussian | 93.5 ± 0.5 ± 0.3 | 93.9 | -0.4 | 20.0 ± 0.0 ± 0.3 | 34.1 | 97.0 |" in text
    assert "80.0 ± one seed ± 0.3 | 84.6 | -4.6 |" in text
    assert "1 of 2 within 1.5 accuracy points of the paper. Not: uniform kNN, k = 16 at 1,000 (-4.60)." in text
    assert points(runs)["mosaic gaussian"][1000]["accuracy"] == (93.5, pytest.approx(0.5))


def test_the_table_says_how_far_the_transformer_is_behind():
    gaussian, transformer = record("gaussian", 0, 92.0), record("gaussian", 0, 40.0)
    transformer.configuration.update(model="transformer", kernel="")
    assert "behind the Gaussian mosaic: 52.0 at 1,000 (paper: 39.4)." in table({"a": gaussian, "b": transformer})


def test_a_longer_training_stands_on_its_own():
    short, longer = record("gaussian", 0, 92.0), record("gaussian", 0, 93.5, best=0.9)
    longer.configuration["label"] = "8 epochs"
    longer.configuration["fit"] = {**longer.configuration["fit"], "steps": 10**6}
    text = table({"a": short, "b": longer})
    assert "| Gaussian | 92.0 ± one seed ± 0.3 | 93.9 | -1.9 |" in text
    assert "| Gaussian, 8 epochs | 93.5 ± one seed ± 0.3 | 93.9 | -0.4 |" in text
    assert "0 of 1 within 1.5 accuracy points of the paper. Not: Gaussian at 1,000 (-1.90)." in text
    for runs in ({"a": short, "b": longer}, {"b": longer, "a": short}):
        assert points(runs) == points({"b": longer})
        assert points(runs)["mosaic gaussian"][1000]["accuracy"][0] == 93.5


def test_a_search_is_decided_by_the_validation_loss():
    runs = {"a": record("gaussian", 0, 95.0, best=1.2), "b": record("gaussian", 0, 93.0, best=1.1)}
    assert [r.outcome["training"]["best"] for r in best_records(runs)["mosaic gaussian", 1000]] == [1.1]


def test_in_distribution_stands_beside_table_3():
    assert "(paper 95.9)" in table({"a": record("gaussian", 0, 95.0, problems=100)})
    assert table({}) == "No run yet."


def test_the_table_says_how_far_back_a_model_looks():
    counts = {}
    for symbols, accuracy in enumerate((48.0, 82.0, 93.0)):
        counts[f"{symbols}"] = record("gaussian", 0, accuracy)
        label = f"{symbols} symbols of context"
        counts[f"{symbols}"].configuration.update(model="counting", kernel="", problems=0, label=label, symbols=symbols)
    text = table({**counts, "a": record("gaussian", 0, 92.0), "b": record("uniform_knn", 0, 60.0)})
    assert "- less than counting with 1 (82.0): uniform kNN, k = 16 at 1,000 (60.0)" in text
    assert "- less than counting with 2 (93.0): Gaussian at 1,000 (92.0)" in text
    assert "| counted, no training, 2 symbols of context | 93.0" in text


def test_published_rows_are_whole():
    assert all(len(row) == len(SPARSE_SIZES) for row in SPARSE_TABLE_1.values())
    assert SPARSE_TABLE_1["mosaic gaussian"][0] == (93.9, 34.1)
    assert SPARSE_TABLE_1["transformer"][0] == (54.5, 62.6)
    assert IN_DISTRIBUTION_100["mosaic gaussian"] == (95.9, 41.7)


def test_the_figure_is_drawn_with_some_of_the_models(tmp_path):
    points = {"mosaic gaussian": {1000: {"accuracy": (93.0, 0.2), "tvd": (20.0, 1.0)}}}
    draw(points, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
