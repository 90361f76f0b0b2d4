"""What lies in `results/` is what the code reads today, and what its commands would make."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tessera.evaluation.provenance import command_line
from tessera.papers.experiment import EXPERIMENTS, RunSelection
from tessera.papers.results import ResultsFile

RESULTS = Path(__file__).parents[2] / "results"
STORED = [name for name in EXPERIMENTS if (RESULTS / name / "cpu.json").exists()]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/*.json")), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_commands_name_no_folder_of_the_machine_that_ran_them(path):
    for command in re.findall(r'"command": ("(?:[^"\\]|\\.)*")', path.read_text(encoding="utf-8")):
        assert json.loads(command) == command_line(shlex.split(json.loads(command)))


@pytest.mark.parametrize("name", STORED)
def test_every_run_of_the_budget_is_recognised(name):
    """A renamed field would orphan results that took hours."""
    records = ResultsFile(RESULTS, name, "cpu").read()
    for run in EXPERIMENTS[name].runs(RunSelection("cpu")):
        assert run.key not in records or records[run.key].configuration == run.configuration


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=RESULTS, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def history() -> set[str]:
    if not (RESULTS.parent / ".git").exists() or git("rev-parse", "--is-shallow-repository").strip() == "true":
        pytest.skip("a copy without the history")
    return set(git("rev-list", "HEAD").split())


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*/cpu.json")), ids=lambda path: path.parent.name)
def test_records_come_from_a_commit_of_the_history(path, history):
    runs = json.loads(path.read_text()).get("runs", {})
    orphans = [key for key, run in runs.items() if run["provenance"]["commit"] not in history]
    assert not orphans
