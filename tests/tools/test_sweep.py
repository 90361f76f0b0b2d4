"""Grids of recipes: how values are divided, what a mistake says, which run is the best."""

import pytest

from tessera.tools.sweep import BITS, NUMBERS, Sweep, best, grid, over_seeds
from tests.refusals import refused


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
