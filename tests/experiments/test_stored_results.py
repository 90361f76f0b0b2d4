"""What lies in `results/` is what the code reads today, and what its commands would make."""

import copy
import json
import runpy
from pathlib import Path

import pytest

from tessera.experiments.catalogue import EXPERIMENTS
from tessera.experiments.experiment import RunSelection, as_json
from tessera.experiments.results import ResultsFile

RESULTS = Path(__file__).parents[2] / "results"
MIGRATE = runpy.run_path(str(RESULTS / "migrate.py"))
STORED = [name for name in EXPERIMENTS if (RESULTS / name / "cpu.json").exists()]


def test_every_results_file_is_migrated(tmp_path):
    for path in RESULTS.glob("*/*.json"):
        stored = json.loads(path.read_text(encoding="utf-8"))
        migrated = copy.deepcopy(stored)
        for rule in MIGRATE["RULES"]:
            rule(migrated)
        assert migrated == stored, f"{path.name}: run results/migrate.py"


@pytest.mark.parametrize("name", STORED)
def test_every_run_of_the_budget_is_recognised(name):
    """A renamed field would orphan results that took hours."""
    records = ResultsFile(RESULTS, name, "cpu").read()
    for run in EXPERIMENTS[name].runs(RunSelection("cpu")):
        assert records[run.key].configuration == as_json(run.configuration)


def test_distances_are_halved_once(tmp_path):
    score = {"mean": 40.0, "standard_error": 2.0, "count": 5}
    run = {"outcome": {"held_out": {"accuracy": score, "l1": score, "last_l1": score}, "in_distribution": None}}
    path = tmp_path / "regbench" / "cpu.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"header": {"experiment": "regbench"}, "runs": {"a": run}}))
    assert MIGRATE["migrate"](tmp_path) == [path]
    halved = {"mean": 20.0, "standard_error": 1.0, "count": 5}
    scores = json.loads(path.read_text())["runs"]["a"]["outcome"]["held_out"]
    assert scores == {"accuracy": score, "tvd": halved, "last_tvd": halved}
    assert MIGRATE["migrate"](tmp_path) == []


def test_fields_are_renamed_in_configurations_alone():
    old = {"batch": 4, "stages": [{"warmup": 0.1}], "fit": {"clip_norm": 1.0}}
    stored = {"header": {"experiment": "toy"}, "runs": {"a": {"configuration": old, "outcome": {"batch": 1}}}}
    MIGRATE["rename_fields"](stored)
    new = {"batch_size": 4, "stages": [{"warmup_ratio": 0.1}], "fit": {"clip": 1.0}}
    assert stored["runs"]["a"] == {"configuration": new, "outcome": {"batch": 1}}
