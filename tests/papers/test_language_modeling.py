"""Language models by depth and kernel: runs, tables and shared models; and their loss on other text."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest

from tessera.papers import recipe_settings
from tessera.papers.experiment import EXPERIMENTS, Record, RunSelection
from tessera.papers.language_modeling.report import by_row, gain_from_context, loss, loss_by_rate, tables
from tessera.papers.language_modeling.run import MAIN, POSITIONS, RATES, SEARCH
from tessera.papers.records import difference
from tessera.papers.results import ResultsFile
from tessera.training.folder import RESULT
from tests.refusals import refused

RESULTS = Path(__file__).parents[2] / "results"
LANGUAGE, OTHER = EXPERIMENTS["language_modeling"], EXPERIMENTS["out_of_distribution"]


@cache
def planned(budget="cpu", name="language_modeling", **choices):
    return {run.key: run for run in EXPERIMENTS[name].runs(RunSelection(budget, **choices))}


def recipe_of(key):
    return deepcopy(planned()[key].configuration.recipe)


def steps(settings):
    return settings.recipe["training"]["steps"]


def record(run, loss, curve=(3.0, 2.0)):
    curves = {"training": [[10, 4.0]], "validation": [[10, 4.0]], "loss_by_position": list(curve)}
    outcome = {"loss": loss, "precision": "fp32", "parameters": 1000, "tokens": 2000, **curves}
    return Record(run.configuration, outcome, {})


def test_models_of_a_depth_and_seed_differ_in_the_model_section_and_the_rate_alone():
    for seed in (0, 1):
        for depth in ("1 block", "8 blocks"):
            names = ("mosaic gaussian", "transformer")
            mosaic, transformer = (recipe_of(f"{name}/{depth}/seed {seed}") for name in names)
            assert mosaic["seed"] == transformer["seed"] == seed
            # Batches are a function of data, tokenizer, seed and batch size.
            assert {key for key in mosaic if mosaic[key] != transformer[key]} <= {"model", "name", "training"}
            rates = [recipe["training"].pop("learning_rate") for recipe in (mosaic, transformer)]
            assert mosaic["training"] == transformer["training"], rates


def test_transformers_differ_in_their_positions_and_the_rate_alone():
    recipes = {name: recipe_of(f"{name}/1 block/seed 0") for name in POSITIONS}
    for recipe in recipes.values():
        recipe["training"].pop("learning_rate")
    assert {name: recipe["model"].pop("positions") for name, recipe in recipes.items()} == POSITIONS
    assert recipes["transformer"] == recipes["transformer_rope"] == recipes["transformer_alibi"]


def test_kernels_differ_in_the_kernel_and_the_rate_alone():
    gaussian, biweight = (recipe_of(f"mosaic {kernel}/4 blocks/seed 0") for kernel in ("gaussian", "biweight"))
    for recipe in (gaussian, biweight):
        recipe["training"].pop("learning_rate")
    assert biweight == gaussian | {"model": gaussian["model"] | {"kernel": "biweight"}}


def test_every_first_seed_comes_before_the_others():
    are_later = [run.configuration.seed > 0 for run in planned().values()]
    assert are_later == sorted(are_later)


def test_the_chosen_rates_are_the_best_of_the_longest_stored_search():
    searches, searched = {}, [run.configuration for run in planned().values() if run.configuration.part == SEARCH]
    for one in ResultsFile(RESULTS, "language_modeling", "cpu").read().values():
        settings = one.configuration
        if settings.part == SEARCH and not settings.text:
            searches.setdefault((settings.name, settings.num_layers), {}).setdefault(steps(settings), []).append(one)
    for row, by_steps in searches.items():
        tried = loss_by_rate(by_steps[max(by_steps)])
        of_row = [run for run in searched if (run.name, run.num_layers, steps(run)) == (*row, max(by_steps))]
        assert set(tried) == {run.learning_rate for run in of_row}, row
        assert RATES[row] == min(tried, key=tried.get), row


def test_differences_are_taken_seed_by_seed():
    names = ("mosaic gaussian/1 block", "transformer/1 block")
    losses = {names[0]: (3.0, 5.0), names[1]: (3.5, 5.25)}
    records = {
        f"{name}/seed {seed}": record(planned()[f"{name}/seed {seed}"], losses[name][seed])
        for name in names
        for seed in (0, 1)
    }
    rows = by_row(records)
    one = difference(rows["mosaic gaussian", 1], rows["transformer", 1], loss)
    assert one.mean == pytest.approx(-0.375)
    assert one.standard_error == pytest.approx(0.125)
    assert difference(rows["mosaic gaussian", 1][:1], rows["transformer", 1][1:], loss) is None


COMMON = {"0.001, seed 0": 4.0, "0.001, seed 1": 1.0, "0.003, seed 0": 3.0}


@pytest.mark.parametrize(
    ("losses", "shown", "cells"),
    [
        (COMMON, 3.0, "4.000 | **3.000** |"),
        ({"0.001, seed 0": 4.0, "0.003, seed 1": 3.0}, 4.0, "**4.000** | 3.000 (seed 1) |"),
        (
            COMMON | {"0.01, seed 1": 0.5},
            3.0,
            "4.000 | **3.000** | 0.500 (seed 1) |",
        ),
        (
            {"0.001, seed 1": 1.0, "0.003, seed 0": 3.0, "0.003, seed 1": 2.0, "0.01, seed 0": 2.5},
            2.5,
            "1.000 (seed 1) | 3.000 | **2.500** |",
        ),
    ],
    ids=["the seeds that all have", "no seed has two, as `--only` can leave them", "one rate has others", "a chain"],
)
def test_a_row_of_several_rates_shows_the_best_of_comparable_seeds(losses, shown, cells):
    runs = planned("long", models=("mosaic_v2",))
    keys = {f"mosaic_v2 gaussian/1 block/rate {name}": value for name, value in losses.items()}
    records = {key: record(runs[key], value) for key, value in keys.items()}
    assert [loss(one) for one in by_row(records)["mosaic_v2 gaussian", 1]] == [shown]
    row = tables(records)["Learning rates"].splitlines()[2]
    assert row == f"| Mosaic v2, Gaussian | 1 | 2,440 | {cells}"


def test_during_training_each_model_is_at_the_rate_that_is_best_by_then():
    runs = planned("long", models=("mosaic_v2",))
    at_rate = {"0.001": [4.0, 3.0, 2.5, 2.2, 2.0], "0.003": [3.0, 2.8, 2.6, 2.4, 2.2]}
    records = {}
    for rate, losses in at_rate.items():
        key = f"mosaic_v2 gaussian/1 block/rate {rate}, seed 0"
        records[key] = made = record(runs[key], losses[-1])
        made.outcome["validation"] = [[10 * step, loss] for step, loss in enumerate(losses, 1)]
    heading, _, row = tables(records)["Validation loss during training"].splitlines()
    assert heading.endswith("| 10 tokens | 20 tokens | 30 tokens | 40 tokens | 50 tokens |")
    assert row == "| 1 | Mosaic v2, Gaussian | 3.000 | 2.800 | 2.500 | 2.200 | 2.000 |"


def test_compact_kernels_of_v2_are_compared_with_its_own_gaussian_kernel():
    runs = planned("long", kernels=("gaussian", "biweight"))
    losses = {"mosaic gaussian": 3.0, "mosaic_v2 gaussian": 4.0, "mosaic_v2 biweight": 3.75}
    keys = {name: f"{name}/1 block/rate 0.01, seed 0" for name in losses}
    made = tables({keys[name]: record(runs[keys[name]], value) for name, value in losses.items()})
    assert made["Validation loss by kernel"].splitlines()[2:] == [
        "| Mosaic v2, Gaussian | 1 | 4.000 |  |",
        "| Mosaic v2, biweight | 1 | 3.750 | -0.250 |",
    ]
    keys |= {name: f"mosaic_v2 gaussian/4 blocks/rate 0.01, seed {seed}" for seed, name in enumerate(("deep", "other"))}
    keys["deep biweight"] = "mosaic_v2 biweight/4 blocks/rate 0.01, seed 0"
    losses |= {"deep": 3.5, "other": 3.0, "deep biweight": 3.25}
    made = tables({keys[name]: record(runs[keys[name]], value) for name, value in losses.items()})
    row = "| Mosaic v2, Gaussian | 1 / 2 | 4.000 |  | 3.250 ± 0.250 |  |"
    assert made["Validation loss by kernel"].splitlines()[2] == row
    rest = losses.keys() - {"mosaic_v2 gaussian"}
    made = tables({keys[name]: record(runs[keys[name]], losses[name]) for name in sorted(rest)})
    row = "| Mosaic v2, Gaussian | 2 |  |  | 3.250 ± 0.250 |  |"  # no training of one block is no other number of seeds
    assert made["Validation loss by kernel"].splitlines()[2] == row
    recipes = [runs[keys[f"mosaic_v2 {kernel}"]].configuration.recipe for kernel in ("gaussian", "biweight")]
    assert recipes[1]["model"] == {**recipes[0]["model"], "kernel": "biweight"}


def test_text_of_the_users_is_named_not_located(tmp_path):
    (tmp_path / "a.txt").write_text("Once upon a time. " * 100)
    selection = RunSelection("smoke", models=("transformer",), data=(f"mine={tmp_path}",))
    run = LANGUAGE.runs(selection)[-1]
    settings = run.configuration
    assert run.key == "mine/transformer/1 block/seed 0"
    assert settings.recipe["data"]["source"] == "mine"
    assert settings.other_text == "mine"
    assert str(tmp_path) not in json.dumps(settings.recipe)
    assert settings.read_recipe(run.data["mine"]).data.source == str(tmp_path)
    (tmp_path / "b.txt").write_text("There was a king. " * 100)
    changed = LANGUAGE.runs(replace(selection, data=(f"mine={tmp_path}/*.txt",)))[-1].configuration
    assert changed.text != settings.text, "another text under the same name is another run"


@pytest.mark.parametrize(("data", "message"), [(("stories",), "be NAME=PATH"), (("a=/none",), "no such text file")])
def test_mistakes_in_data(data, message):
    refused(message, OTHER.runs, RunSelection("smoke", data=data))


def test_other_text_is_read_by_the_models_of_the_main_trainings():
    main = [run.configuration for run in planned().values() if run.configuration.part == MAIN]
    runs = OTHER.runs(RunSelection("cpu"))
    assert [run.configuration.trained for run in runs] == main
    assert {run.configuration.text for run in runs} == {"novels"}


def test_a_model_that_two_runs_need_is_trained_once(tmp_path, monkeypatch):
    """Where one model reads two texts, at the same time: the second run found the folder locked, and failed."""
    trainings = []

    def train(recipe, folder, **options):
        trainings.append(folder)
        time.sleep(0.3)
        folder.mkdir(exist_ok=True)
        (folder / RESULT).touch()

    monkeypatch.setattr(recipe_settings, "train", train)
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(partial(recipe_settings.trained, None), [tmp_path / "model"] * 2)) == trainings * 2


def test_a_gain_from_context_needs_a_long_context():
    run = planned(name="out_of_distribution")["novels/transformer/1 block/seed 0"]
    assert gain_from_context({("transformer", 1): [record(run, 3.0, [5.0] * 128)]}) == ""
