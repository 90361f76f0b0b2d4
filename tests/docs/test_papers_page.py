"""docs/papers.md: every figure and table has a row, every command parses, every file exists."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from tessera.cli.main import make_parser
from tessera.models import MODELS
from tessera.papers.catalogue import EXPERIMENTS
from tessera.recipes.files import find_recipe
from tessera.recipes.recipe import read_recipe
from tessera.tools.sweep import grid

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "papers.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.+?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
# (figures, tables) of the papers that number them
NUMBERED = {
    "Memory Mosaics": (16, 5),
    "Memory Mosaics v2": (11, 8),
    "Sparse Attention as Compact Kernel Regression": (5, 7),
}
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| in the paper")
]
COMMANDS = sorted(
    {command for row in ROWS for cell in row for command in re.findall(r"`((?:tessera|python) [^`]+)`", cell)}
)
FILES = sorted({name for row in ROWS for name in re.findall(r"`((?:results|docs|tessera)/[^`*]+)`", " ".join(row))})


@pytest.mark.parametrize("paper", NUMBERED)
def test_every_figure_and_table_has_one_row(paper):
    figures, tables = NUMBERED[paper]
    expected = [f"figure {i + 1}" for i in range(figures)] + [f"table {i + 1}" for i in range(tables)]
    assert sorted(re.findall(r"^\| ((?:figure|table) \d+),", SECTIONS[paper], re.MULTILINE)) == sorted(expected)


def test_rows_are_complete():
    assert len(SECTIONS) == 4
    assert len(ROWS) >= 21 + 19 + 12 + 11
    for row in ROWS:
        assert len(row) == 5, row
        assert row[0], row
        assert row[1], row
        assert row[4], row


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_parse(command):
    program, *arguments = shlex.split(command)
    if program == "python":
        if arguments[0] == "-m":
            assert importlib.util.find_spec(arguments[1]) is not None
        else:
            assert (ROOT / arguments[0]).is_file()
        return
    parsed = make_parser().parse_args(arguments)
    if parsed.verb == "train":
        overrides = [override for override in parsed.overrides if not override.startswith("model.base=runs/")]
        assert read_recipe(parsed.recipe, overrides)
    elif parsed.verb == "sweep":
        assert all(read_recipe(parsed.recipe, point.overrides) for point in grid(parsed.overrides))
    elif parsed.verb == "info":
        assert parsed.what in MODELS or find_recipe(parsed.what)
    elif parsed.verb == "reproduce":
        assert parsed.experiment in EXPERIMENTS
    elif parsed.verb in ("eval", "generate", "inspect"):  # the folders that `train` makes
        assert all(find_recipe(Path(model).name) for model in parsed.models)


@pytest.mark.parametrize("name", FILES)
def test_files_exist(name):
    assert (ROOT / name).exists()
