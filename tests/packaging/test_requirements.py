"""What the project says about itself in two places is the same in both."""

import re
import tomllib
from pathlib import Path

import yaml

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
