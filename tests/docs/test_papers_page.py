"""docs/papers.md: every command parses, every file exists."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from tessera.cli.main import make_parser
from tessera.models import MODELS
from tessera.papers.experiment import EXPERIMENTS
from tessera.recipes.recipe import read_recipe
from tessera.recipes.recipe_files import find_recipe
from tessera.tools.sweep import grid

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "papers.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| in the paper")
]
COMMANDS = sorted(
    {command for row in ROWS for cell in row for command in re.findall(r"`((?:tessera|python) [^`]+)`", cell)}
)


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
