"""Continuous integration runs what the Makefile offers, on the Python versions that the package claims."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COMMANDS = re.compile(r"^([a-z-]+):", re.MULTILINE)

pytestmark = pytest.mark.skipif(not WORKFLOWS, reason="a source distribution has no workflows")


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.stem)
def jobs(request):
    return yaml.safe_load(request.param.read_text(encoding="utf-8"))["jobs"]


def test_every_step_is_a_target_of_the_makefile(jobs):
    targets = COMMANDS.findall((ROOT / "Makefile").read_text(encoding="utf-8"))
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert runs
    for run in runs:
        assert run.startswith("make "), run
        assert set(run.split()[1:]) <= set(targets), run


def test_the_tested_pythons_are_the_claimed_ones(jobs):
    tested = [job["strategy"]["matrix"]["python"] for job in jobs.values() if "strategy" in job]
    claimed = [c.split(" :: ")[-1] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", c)]
    assert tested == [claimed]
    assert PROJECT["requires-python"] == f">={claimed[0]}"


def test_nothing_names_a_package_index():
    files = [*WORKFLOWS, ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "constraints.txt"]
    for file in files:
        assert "://" not in file.read_text(encoding="utf-8"), file.name


def test_every_requirement_is_pinned():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pinned = {_normal(name): pin for name, pin in pins.items()}
    extras = PROJECT["optional-dependencies"].values()
    requirements = [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]
    names = {_normal(re.match(r"[\w.-]+", line)[0]) for line in requirements} - {"tessera"}
    assert names - set(pinned) == set()


def test_the_citation_has_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]


def _normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()
