"""Every registered experiment: its runs of all budgets, and its smoke budget from end to end."""

import json
import re
from dataclasses import replace
from fnmatch import fnmatch

import pytest

from tessera.base.dataclass_io import from_json, to_json
from tessera.base.errors import TesseraError
from tessera.papers import runner
from tessera.papers.experiment import EXPERIMENTS, RunSelection
from tessera.papers.results import ResultsFile, tables_of
from tessera.papers.runner import reproduce
from tessera.recipes.recipe_files import find_recipe
from tests.covering import some

NAMES = list(EXPERIMENTS)


# Each run of these has a recipe of its own, which is read: hundreds.
OF_RECIPES = ("babilong", "language_modeling", "out_of_distribution")


@some(
    ("name", "budget"),
    [(name, budget) for name in NAMES for budget in EXPERIMENTS[name].budgets],
    by_default=lambda name, budget: budget == "smoke" or name not in OF_RECIPES,
)
def test_runs_of_every_budget(name, budget):
    experiment = EXPERIMENTS[name]
    runs = experiment.runs(RunSelection(budget))
    keys = [run.key for run in runs]
    assert runs
    assert len(set(keys)) == len(keys)
    for run in runs:
        written = json.dumps(to_json(run.configuration), allow_nan=False)
        stored = from_json(experiment.settings, json.loads(written), run.key)
        assert stored == run.configuration, f"{run.key} would be done again"
        assert json.dumps(to_json(stored), allow_nan=False) == written
        assert run.cost > 0
    configurations = [json.dumps(to_json(run.configuration), sort_keys=True) for run in runs]
    assert len(set(configurations)) == len(runs), "two runs are the same"
    assert keys == [run.key for run in EXPERIMENTS[name].runs(RunSelection(budget))]


@pytest.mark.parametrize("name", NAMES)
def test_who_asks_for_the_published_setting_is_told_what_there_is(name):
    with pytest.raises(TesseraError, match=r"--budget must be one of smoke, cpu(, long)?; got full\. [A-Z].+") as error:
        EXPERIMENTS[name].runs(RunSelection("full"))
    for recipe in re.findall(r"(?:train|then) `?(?:tessera train )?([a-z0-9-]+)", str(error.value)):
        assert find_recipe(recipe)


@some("name", NAMES, by_default=lambda name: name not in OF_RECIPES)
def test_choices_narrow_the_runs(name):
    experiment = EXPERIMENTS[name]
    keys = {run.key for run in experiment.runs(RunSelection("cpu"))}
    for word, known in (("models", experiment.models), ("kernels", experiment.kernels)):
        for one in known:
            some = {run.key for run in experiment.runs(replace(RunSelection("cpu"), **{word: (one,)}))}
            assert some, f"--{word} {one} leaves nothing to do"
        with pytest.raises(TesseraError, match=f"unknown {word[:-1]} 'nothing'" if known else "be left out"):
            experiment.runs(replace(RunSelection("cpu"), **{word: ("nothing",)}))
    fewer = {run.key for run in experiment.runs(RunSelection("cpu", seeds=1))}
    assert fewer <= keys
    assert len(fewer) < len(keys) or all("seed 0" in key for key in keys)


# Of each way to train one experiment by default: the recipe of a text, functions of a task; of experiments with many
# runs those that pass every branch of the run and of the report.
OF_EACH_WAY = ("language_modeling", "many_shot")
SOME = {
    "armt_language": "*/[bac]*",
    "associative_retrieval": "*/remember/*",
    "attention_profiles": "*[ec]/*",
    "babilong": "*_shut/qa1/*",
    "document_qa": "*[2a]/*",
    "language_modeling": "*mosaic*",
    "length_generalization": "[ms]*",
    "many_shot": "*[2a]/*",
    "out_of_distribution": "*mosaic*",
    "regbench": "[nm][go]*",
    "three_moons": "[tr]*[syt]/*",
}


@pytest.mark.usefixtures("short_books")
@pytest.mark.parametrize(
    ("name", "only"),
    [pytest.param(name, SOME.get(name, "*"), marks=() if name in OF_EACH_WAY else pytest.mark.grid) for name in NAMES]
    + [pytest.param(name, "*", marks=pytest.mark.grid, id=f"all of {name}") for name in SOME],
)
def test_smoke_from_end_to_end(name, only, tmp_path, monkeypatch):
    folders = {"output": tmp_path, "checkpoints": tmp_path / "checkpoints"}
    monkeypatch.setattr(runner, "DRAWN_EVERY", 1000.0)  # once, after the last

    def go():
        return reproduce(name, RunSelection("smoke"), workers=1, only=only, **folders)

    experiment, table = EXPERIMENTS[name], go()
    results = ResultsFile(tmp_path, name, "smoke")
    records = results.read()
    assert {run.key for run in experiment.runs(RunSelection("smoke")) if fnmatch(run.key, only)} == set(records)
    assert results.path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "| --- |" in table.read_text()
    written = results.path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(runner, "write_report", lambda results: results.path)
        go()
    assert results.path.read_bytes() == written, "finished runs were done again"
    # Interrupted after its first run, an experiment can still be shown.
    first = next(iter(records))
    results.path.unlink()
    results.add(first, records[first])
    assert all("| --- |" in table for table in tables_of(results).values())
    experiment.plot(results.read(), tmp_path / "partial.png")
    assert (tmp_path / "partial.png").stat().st_size > 5000
