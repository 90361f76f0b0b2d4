"""What the project says in two places is the same, and what `make test` leaves out is run elsewhere."""

import re
import shlex
import subprocess
import tomllib
from itertools import pairwise
from pathlib import Path

import yaml
from _pytest.mark.expression import Expression

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


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


PYTEST = "python -m pytest "


def test_every_other_mark_is_run():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    targets = re.findall(r"\bmake ([a-z-]+)", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))
    command = ["make", "--dry-run", *targets]
    recipes = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    chosen = [chosen_by(line, settings["addopts"]) for line in recipes.splitlines() if PYTEST in line]
    marks = {line.split(":")[0] for line in settings["markers"]} - {"slow", "gpu"}
    for mark in ["", *marks]:
        assert any(is_chosen({mark}) for is_chosen in chosen), f"no run of tests marked {mark or 'as nothing'}"


def chosen_by(line, by_default):
    """Whether a command of pytest runs tests with some marks: its last `-m` says so."""
    words = [*shlex.split(by_default), *shlex.split(line.partition(PYTEST)[2])]
    expression = Expression.compile([after for word, after in pairwise(words) if word == "-m"][-1])
    return lambda marks: expression.evaluate(lambda name, **_: name in marks)
