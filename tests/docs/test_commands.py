"""The commands of README and docs exist with the options that they are given; cheap pages run from top to bottom."""

import re
import shlex
from pathlib import Path

import pytest

from tessera.cli.main import _parse, main
from tests.covering import some
from tests.short_books import beginnings, short_books  # noqa: F401 (fixtures)

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?:sh|bash|console)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Pages whose commands take seconds, on any machine.
CHEAP = ["docs/how-to/evaluate.md", "docs/how-to/runs.md"]


def commands(page):
    """Each `tessera ...` and `python -m tessera...` of a page's blocks, as words."""
    for block in FENCE.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            for command in re.split(r"&&|\|\||;| \| ", line.split("  #")[0]):
                words = re.sub(r"\d?>>? *\S+", "", command).strip().removeprefix("$ ")
                if re.match(r"(tessera|python -m tessera\S*) ", words) and "..." not in words:
                    yield shlex.split(words, comments=True)


def cases(pages):
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages if any(commands(page))]


@pytest.mark.parametrize("page", cases(PAGES))
def test_every_command_is_one_that_is_understood(page):
    for words in commands(page):
        if words[0] == "tessera":
            _parse(words[1:])
        elif words[2] == "tessera.lm_eval":
            harness = pytest.importorskip("lm_eval._cli.harness")
            parsed = harness.HarnessCLI()._parser.parse_args(["run", *words[3:]])
            from tessera.evaluation.harness import ARGUMENTS

            assert parsed.model == "tessera"
            assert set(parsed.model_args) <= set(ARGUMENTS)


@pytest.mark.usefixtures("short_books")
@some("page", [ROOT / name for name in CHEAP], by_default=[ROOT / CHEAP[0]], ids=CHEAP)
def test_cheap_pages_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for words in commands(page):
        assert main(words[1:]) == 0, (words, capsys.readouterr().err)
