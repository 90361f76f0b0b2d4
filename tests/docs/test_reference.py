"""Every public object has its place in the reference, and every family of golden files in their README."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import tessera
from tests.golden_files import FOLDER

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
DIRECTIVE = re.compile(r"^\.\. auto(\w+):: (\S+)((?:\n   :.*)*)", re.MULTILINE)
NO_ROOM = ("tessera.cli", "tessera.papers", "tessera.training")  # used by the command line


def documented_names() -> set[str]:
    """The names of all objects that the reference shows, as autodoc chooses them."""
    names = set()
    for page in REFERENCE.glob("*.md"):
        for kind, target, options in DIRECTIVE.findall(page.read_text(encoding="utf-8")):
            if kind != "module":
                names.add(target)
                continue
            members = re.search(r":members: (.+)", options)
            module = importlib.import_module(target)
            shown = members[1].split(", ") if members else getattr(module, "__all__", vars(module))
            members = {name: getattr(module, name) for name in shown}
            names |= {f"{target}.{name}" for name, value in members.items() if callable(value) and value.__doc__}
    return names


def test_everything_that_tessera_offers_is_in_the_reference():
    shown = {name.rpartition(".")[2] for name in documented_names()}
    assert set(tessera.__all__) - shown == {"__version__"}


def packages() -> list[str]:
    """Packages with a list of public names."""
    actual = [module.name for module in pkgutil.walk_packages(tessera.__path__, "tessera.") if module.ispkg]
    return [
        name for name in actual if not name.startswith(NO_ROOM) and hasattr(importlib.import_module(name), "__all__")
    ]


@pytest.mark.parametrize("package", packages())
def test_the_public_names_of_every_package_are_in_the_reference(package):
    module = importlib.import_module(package)
    public = {name for name in module.__all__ if callable(getattr(module, name))}
    assert {f"{package}.{name}" for name in public} - documented_names() == set()


def test_the_readme_of_every_operation_is_a_page():
    beside = {path.parent.name for path in Path(tessera.__file__).parent.glob("ops/*/README.md")}
    assert {path.stem for path in (REFERENCE.parent / "derivations").glob("*.md")} == beside


ROWS = [line for line in (FOLDER / "README.md").read_text().splitlines() if re.match(r"\| `[A-Z]_", line)]


def test_every_family_has_a_row_and_its_tests_exist():
    assert [row.split("`")[1] for row in ROWS] == sorted(path.name for path in FOLDER.iterdir() if path.is_dir())
    files = [name for row in ROWS for name in re.findall(r"`([a-z_/]+/test_\w+\.py)`", row)]
    assert files
    assert all((FOLDER.parent / name).is_file() for name in files)
